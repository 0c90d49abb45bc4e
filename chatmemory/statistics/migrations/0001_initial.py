import chatmemory.models.fields
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='DailyActivity',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('day', models.DateField(unique=True, verbose_name='day')),
                ('sessions', models.BigIntegerField(db_default=0, verbose_name='conversations')),
                ('messages', models.BigIntegerField(db_default=0, verbose_name='messages')),
                ('good', models.BigIntegerField(db_default=0, verbose_name='good')),
                ('bad', models.BigIntegerField(db_default=0, verbose_name='bad')),
            ],
            options={
                'verbose_name': 'activity of a day',
                'verbose_name_plural': 'activity of days',
                'default_permissions': (),
                'base_manager_name': 'objects',
            },
        ),
        migrations.CreateModel(
            name='Watermark',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('marks', models.JSONField(default=dict)),
            ],
            options={
                'verbose_name': 'watermark',
                'verbose_name_plural': 'watermarks',
                'default_permissions': (),
                'base_manager_name': 'objects',
            },
        ),
        migrations.CreateModel(
            name='DailyTurns',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('day', models.DateField(verbose_name='day')),
                ('model', chatmemory.models.fields.KeyField(max_length=100, verbose_name='model')),
                ('status', chatmemory.models.fields.KeyField(max_length=12, verbose_name='status')),
                ('error', chatmemory.models.fields.KeyField(max_length=32, verbose_name='error')),
                ('turns', models.BigIntegerField(verbose_name='turns')),
                ('tokens_in', models.BigIntegerField(verbose_name='tokens in')),
                ('tokens_out', models.BigIntegerField(verbose_name='tokens out')),
                ('first_text', models.JSONField(default=dict)),
                ('duration', models.JSONField(default=dict)),
            ],
            options={
                'verbose_name': 'statistics',
                'verbose_name_plural': 'statistics',
                'permissions': (('view_statistics', 'Can view the statistics of all conversations'),),
                'default_permissions': (),
                'base_manager_name': 'objects',
                'constraints': [models.UniqueConstraint(fields=('day', 'model', 'status', 'error'), name='chatmemory_statistics_dailyturns_key')],
            },
        ),
    ]

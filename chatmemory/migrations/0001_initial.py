import chatmemory.models.fields
import chatmemory.models.indexes
import chatmemory.models.sessions
import django.db.models.deletion
import django.db.models.expressions
import django.db.models.manager
from django.conf import settings
from django.db import migrations, models


# Tables of many rows have their columns of fixed width first, in the order of their widths:
# PostgreSQL aligns numbers and times to their width, and would leave 12 bytes of each message empty.


def leave_room_for_updates(apps, schema_editor):
    """Let each new version of a session's row find room on its page.

    Full pages let 86 % of the updates stay off the indexes, these 100 %.
    """
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("ALTER TABLE chatmemory_session SET (fillfactor = 85)")


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='AuditSeal',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.BigIntegerField(unique=True)),
                ('entry_pk', models.BigIntegerField(unique=True)),
                ('digest', models.CharField(max_length=64)),
                ('created_at', models.DateTimeField(db_default=chatmemory.models.fields.DatabaseNow())),
            ],
            options={
                'verbose_name': 'audit seal',
                'verbose_name_plural': 'audit seals',
                'base_manager_name': 'objects',
            },
        ),
        migrations.CreateModel(
            name='Reading',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('session_pk', models.BigIntegerField()),
                ('actor_kind', models.CharField(max_length=16)),
                ('actor_id', models.CharField(max_length=150)),
                ('entry_pk', models.BigIntegerField()),
                ('ranges', models.JSONField()),
            ],
            options={
                'verbose_name': 'reading',
                'verbose_name_plural': 'readings',
                'base_manager_name': 'objects',
                'constraints': [models.UniqueConstraint(fields=('session_pk', 'actor_kind', 'actor_id'), name='chatmemory_reading_actor')],
            },
        ),
        migrations.CreateModel(
            name='Ticket',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(max_length=64, unique=True)),
                ('user_pk', models.CharField(db_index=True, max_length=150)),
                ('proof', models.CharField(max_length=64)),
                ('login', models.TextField()),
                ('expires_at', models.DateTimeField(db_index=True)),
            ],
            options={
                'verbose_name': 'ticket',
                'verbose_name_plural': 'tickets',
                'base_manager_name': 'objects',
            },
        ),
        migrations.CreateModel(
            name='AuditEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('actor_kind', models.CharField(max_length=16)),
                ('actor_id', models.CharField(max_length=150)),
                ('actor_label', models.CharField(max_length=200)),
                ('action', models.CharField(max_length=16)),
                ('session_pk', models.BigIntegerField(db_index=True, null=True)),
                ('key_hash', models.CharField(max_length=64)),
                ('reason', models.CharField(max_length=500)),
                ('from_seq', models.BigIntegerField(null=True)),
                ('to_seq', models.BigIntegerField(null=True)),
                ('counts', models.JSONField(default=dict)),
                ('created_at', models.DateTimeField(db_default=chatmemory.models.fields.DatabaseNow())),
                ('mac', models.CharField(max_length=100, unique=True)),
            ],
            options={
                'verbose_name': 'audit entry',
                'verbose_name_plural': 'audit entries',
                'base_manager_name': 'objects',
                'indexes': [models.Index(fields=['actor_id', 'created_at'], name='chatmemory_audit_actor')],
            },
        ),
        migrations.CreateModel(
            name='Session',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('scope', chatmemory.models.fields.KeyField(max_length=150, verbose_name='scope')),
                ('key', chatmemory.models.fields.KeyField(max_length=200, verbose_name='key')),
                ('title', models.CharField(blank=True, db_default='', max_length=200, verbose_name='title')),
                ('instructions', models.TextField(blank=True, default='', verbose_name='instructions')),
                ('metadata', models.JSONField(blank=True, default=dict, verbose_name='metadata')),
                ('first_seq', models.BigIntegerField(db_default=1, verbose_name='first message')),
                ('last_seq', models.BigIntegerField(db_default=0, verbose_name='last message')),
                ('stored_from', models.BigIntegerField(db_default=1)),
                ('superseded_to', models.BigIntegerField(db_default=0)),
                ('epoch', models.BigIntegerField(default=chatmemory.models.sessions.random_epoch)),
                ('revision', models.BigIntegerField(db_default=0)),
                ('rows_revision', models.BigIntegerField(db_default=0)),
                ('running', chatmemory.models.fields.KeyField(max_length=64, null=True)),
                ('waiting', models.IntegerField(db_default=0)),
                ('fence', models.BigIntegerField(db_default=0)),
                ('tokens', models.BigIntegerField(db_default=0, verbose_name='tokens')),
                ('last_message_at', models.DateTimeField(null=True, verbose_name='last message at')),
                ('last_active_day', models.DateField(db_default=chatmemory.models.fields.DatabaseToday(), db_index=True)),
                ('expires_at', models.DateTimeField(blank=True, db_index=True, null=True, verbose_name='expires at')),
                ('archived_at', models.DateTimeField(null=True, verbose_name='archived at')),
                ('pinned_at', models.DateTimeField(null=True, verbose_name='pinned at')),
                ('held_at', models.DateTimeField(null=True, verbose_name='on hold since')),
                ('removed_at', models.DateTimeField(null=True, verbose_name='purged at')),
                ('removed_scope', chatmemory.models.fields.KeyField(db_default='', db_index=True, max_length=150)),
                ('created_at', models.DateTimeField(db_default=chatmemory.models.fields.DatabaseNow(), verbose_name='created at')),
                ('owner', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL, verbose_name='owner')),
            ],
            options={
                'verbose_name': 'session',
                'verbose_name_plural': 'sessions',
                'permissions': (('view_transcript', 'Can read transcripts'), ('view_unmasked', 'Can read unmasked transcripts'), ('trim_history', 'Can trim and clear history'), ('purge_history', 'Can purge sessions'), ('export_history', 'Can export history'), ('redact_message', 'Can redact messages'), ('hold_session', 'Can put sessions on hold'), ('tag_session', 'Can tag sessions'), ('erase_person', 'Can erase a person'), ('view_audit', 'Can read the audit')),
                'base_manager_name': 'objects',
            },
        ),
        migrations.CreateModel(
            name='Message',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('session', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='messages', to='chatmemory.session')),
                ('seq', models.BigIntegerField(verbose_name='number')),
                ('turn', models.BigIntegerField(null=True)),
                ('revision', models.BigIntegerField(db_default=0)),
                ('created_at', models.DateTimeField(db_default=chatmemory.models.fields.DatabaseNow(), verbose_name='created at')),
                ('batch', models.IntegerField(null=True)),
                ('step', models.IntegerField(null=True)),
                ('tokens', models.IntegerField(verbose_name='tokens')),
                ('feedback', models.SmallIntegerField(choices=[(1, 'good'), (-1, 'bad')], null=True)),
                ('redacted', models.BooleanField(db_default=False, verbose_name='redacted')),
                ('quarantined', models.BooleanField(db_default=False, verbose_name='quarantined')),
                ('role', models.CharField(choices=[('system', 'system'), ('user', 'user'), ('assistant', 'assistant'), ('tool', 'tool')], max_length=12, verbose_name='role')),
                ('text', models.TextField(verbose_name='text')),
                ('body', models.TextField(null=True)),
                ('client_id', chatmemory.models.fields.KeyField(max_length=64, null=True)),
                ('status', models.CharField(choices=[('complete', 'complete'), ('interrupted', 'interrupted'), ('failed', 'failed')], max_length=12, verbose_name='status')),
                ('error', models.CharField(max_length=32, verbose_name='error')),
                ('model', models.CharField(max_length=100, verbose_name='model')),
            ],
            options={
                'verbose_name': 'message',
                'verbose_name_plural': 'messages',
                'base_manager_name': 'stored',
            },
            managers=[
                ('objects', django.db.models.manager.Manager()),
                ('stored', django.db.models.manager.Manager()),
            ],
        ),
        migrations.CreateModel(
            name='Feedback',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('turn', chatmemory.models.fields.KeyField(max_length=64)),
                ('user_seq', models.BigIntegerField()),
                ('value', models.SmallIntegerField(choices=[(1, 'good'), (-1, 'bad')])),
                ('reason', models.CharField(db_default='', max_length=1000)),
                ('created_at', models.DateTimeField(db_default=chatmemory.models.fields.DatabaseNow())),
                ('changed_at', models.DateTimeField(db_default=chatmemory.models.fields.DatabaseNow())),
                ('session', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='feedback', to='chatmemory.session')),
            ],
            options={
                'verbose_name': 'feedback',
                'verbose_name_plural': 'feedback',
                'default_permissions': (),
                'base_manager_name': 'objects',
            },
        ),
        migrations.CreateModel(
            name='SessionTag',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('tag', chatmemory.models.fields.KeyField(max_length=100, verbose_name='tag')),
                ('created_at', models.DateTimeField(db_default=chatmemory.models.fields.DatabaseNow(), verbose_name='created at')),
                ('session', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='tags', to='chatmemory.session')),
            ],
            options={
                'verbose_name': 'session tag',
                'verbose_name_plural': 'session tags',
                'default_permissions': (),
                'base_manager_name': 'objects',
            },
        ),
        migrations.CreateModel(
            name='Turn',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('session', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='turns', to='chatmemory.session')),
                ('place', models.BigIntegerField(db_default=0)),
                ('user_seq', models.BigIntegerField(null=True)),
                ('replaces_from', models.BigIntegerField(null=True)),
                ('replaces_to', models.BigIntegerField(null=True)),
                ('epoch', models.BigIntegerField()),
                ('fence', models.BigIntegerField(db_default=0)),
                ('lease_until', models.DateTimeField(null=True)),
                ('started_at', models.DateTimeField(null=True)),
                ('stop_requested_at', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(db_default=chatmemory.models.fields.DatabaseNow())),
                ('ended_at', models.DateTimeField(null=True)),
                ('step', models.IntegerField(db_default=0)),
                ('scope', chatmemory.models.fields.KeyField(db_default='', max_length=150)),
                ('client_id', chatmemory.models.fields.KeyField(max_length=64)),
                ('status', models.CharField(choices=[('waiting', 'waiting'), ('running', 'running'), ('complete', 'complete'), ('interrupted', 'interrupted'), ('failed', 'failed'), ('cancelled', 'cancelled')], max_length=12)),
                ('asked', models.TextField(default='')),
                ('lease_owner', models.CharField(default='', max_length=64)),
                ('partial', models.TextField(default='')),
                ('model', models.CharField(default='', max_length=100)),
                ('usage', models.TextField(default='')),
                ('error', models.CharField(default='', max_length=32)),
            ],
            options={
                'verbose_name': 'turn',
                'verbose_name_plural': 'turns',
                'base_manager_name': 'objects',
            },
        ),
        migrations.AddConstraint(
            model_name='session',
            constraint=models.UniqueConstraint(fields=('scope', 'key'), name='chatmemory_session_address'),
        ),
        migrations.AddConstraint(
            model_name='session',
            constraint=models.CheckConstraint(condition=models.Q(('first_seq__gte', 1), ('first_seq__lte', django.db.models.expressions.CombinedExpression(models.F('last_seq'), '+', models.Value(1)))), name='chatmemory_session_floor'),
        ),
        migrations.AddConstraint(
            model_name='session',
            constraint=models.CheckConstraint(condition=models.Q(('stored_from__gte', 1), ('stored_from__lte', models.F('first_seq'))), name='chatmemory_session_stored'),
        ),
        migrations.AddConstraint(
            model_name='message',
            constraint=models.UniqueConstraint(fields=('session', 'seq'), name='chatmemory_message_seq'),
        ),
        migrations.AddConstraint(
            model_name='message',
            constraint=chatmemory.models.indexes.UniqueIfSet(fields=('session', 'client_id'), name='chatmemory_message_client_id'),
        ),
        migrations.AddConstraint(
            model_name='feedback',
            constraint=models.UniqueConstraint(fields=('session', 'user_seq'), name='chatmemory_feedback_turn'),
        ),
        migrations.AddConstraint(
            model_name='feedback',
            constraint=models.CheckConstraint(condition=models.Q(('value__in', [-1, 1])), name='chatmemory_feedback_value'),
        ),
        migrations.AddIndex(
            model_name='sessiontag',
            index=models.Index(fields=['tag'], name='chatmemory_sessiontag_tag'),
        ),
        migrations.AddConstraint(
            model_name='sessiontag',
            constraint=models.UniqueConstraint(fields=('session', 'tag'), name='chatmemory_sessiontag_once'),
        ),
        migrations.AddIndex(
            model_name='turn',
            index=chatmemory.models.indexes.PartialIndex(fields=['status', 'scope'], name='chatmemory_turn_live', where=models.Q(('status__in', ['waiting', 'running']))),
        ),
        migrations.AddIndex(
            model_name='turn',
            index=models.Index(fields=['session', 'user_seq'], name='chatmemory_turn_user_seq'),
        ),
        migrations.AddIndex(
            model_name='turn',
            index=chatmemory.models.indexes.PartialIndex(fields=['session', 'replaces_to'], name='chatmemory_turn_replaces', where=models.Q(('replaces_to__isnull', False))),
        ),
        migrations.AddConstraint(
            model_name='turn',
            constraint=models.UniqueConstraint(fields=('session', 'client_id'), name='chatmemory_turn_client_id'),
        ),
        migrations.RunPython(leave_room_for_updates, migrations.RunPython.noop, elidable=False),
    ]

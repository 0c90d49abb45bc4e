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


def set_storage_parameters(apps, schema_editor):
    """Set what PostgreSQL's defaults make slow.

    Each new version of a session's row finds room on its page. Full pages let 86 % of the updates
    stay off the indexes, these 100 %. Turns are vacuumed by their number, not by their share: until
    then an index alone cannot answer which of the newest turns failed.
    """
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("ALTER TABLE chatmemory_session SET (fillfactor = 85)")
        schema_editor.execute(
            "ALTER TABLE chatmemory_turn SET ("
            "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,"
            " autovacuum_vacuum_insert_scale_factor = 0,"
            " autovacuum_vacuum_insert_threshold = 10000)"
        )


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Maintenance',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=32, unique=True, verbose_name='task')),
                ('started_at', models.DateTimeField(null=True, verbose_name='started at')),
                ('ended_at', models.DateTimeField(null=True, verbose_name='ended at')),
                ('succeeded_at', models.DateTimeField(null=True, verbose_name='succeeded at')),
                ('is_ok', models.BooleanField(null=True, verbose_name='without problems')),
                ('counts', models.JSONField(default=dict, verbose_name='counts')),
            ],
            options={
                'verbose_name': 'health',
                'verbose_name_plural': 'health',
                'default_permissions': (),
                'base_manager_name': 'objects',
            },
        ),
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
                'default_permissions': (),
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
                'default_permissions': (),
                'base_manager_name': 'objects',
                'constraints': [models.UniqueConstraint(fields=('session_pk', 'actor_kind', 'actor_id'), name='chatmemory_reading_actor')],
            },
        ),
        migrations.CreateModel(
            name='Ticket',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(max_length=64, unique=True)),
                ('owner', chatmemory.models.fields.KeyField(db_index=True, max_length=150)),
                ('proof', models.CharField(max_length=64)),
                ('login', models.TextField()),
                ('expires_at', models.DateTimeField(db_index=True)),
            ],
            options={
                'verbose_name': 'ticket',
                'verbose_name_plural': 'tickets',
                'default_permissions': (),
                'base_manager_name': 'objects',
            },
        ),
        migrations.CreateModel(
            name='Visitor',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(max_length=64, unique=True, verbose_name='digest')),
                ('embed', chatmemory.models.fields.KeyField(db_default='', max_length=64, verbose_name='embed')),
                ('seen_day', models.DateField(db_default=chatmemory.models.fields.DatabaseToday(), verbose_name='last seen on')),
                ('ends_at', models.DateTimeField(db_index=True, verbose_name='ends at')),
                ('adopted_by', chatmemory.models.fields.KeyField(db_default='', db_index=True, max_length=150, verbose_name='adopted by')),
                ('adopted_at', models.DateTimeField(null=True, verbose_name='adopted at')),
                ('moved', models.JSONField(default=dict)),
                ('created_at', models.DateTimeField(db_default=chatmemory.models.fields.DatabaseNow(), verbose_name='created at')),
            ],
            options={
                'verbose_name': 'visitor',
                'verbose_name_plural': 'visitors',
                'default_permissions': (),
                'base_manager_name': 'objects',
            },
        ),
        migrations.CreateModel(
            name='Job',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('total', models.BigIntegerField(db_default=0, verbose_name='conversations')),
                ('done', models.BigIntegerField(db_default=0, verbose_name='done')),
                ('position', models.BigIntegerField(db_default=0)),
                ('fence', models.BigIntegerField(db_default=0)),
                ('lease_until', models.DateTimeField(null=True)),
                ('cancel_requested_at', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(db_default=chatmemory.models.fields.DatabaseNow(), verbose_name='created at')),
                ('started_at', models.DateTimeField(null=True, verbose_name='started at')),
                ('ended_at', models.DateTimeField(null=True, verbose_name='ended at')),
                ('action', models.CharField(max_length=32, verbose_name='action')),
                ('status', models.CharField(choices=[('queued', 'queued'), ('running', 'running'), ('complete', 'complete'), ('cancelled', 'cancelled'), ('failed', 'failed')], max_length=12, verbose_name='status')),
                ('error', models.CharField(db_default='', max_length=32, verbose_name='error')),
                ('lease_owner', models.CharField(db_default='', max_length=64)),
                ('actor_kind', models.CharField(max_length=16)),
                ('actor_id', models.CharField(max_length=150)),
                ('actor_label', models.CharField(max_length=200, verbose_name='operator')),
                ('cancelled_by', models.CharField(db_default='', max_length=200, verbose_name='cancelled by')),
                ('permissions', models.CharField(max_length=200)),
                ('reason', models.CharField(max_length=500, verbose_name='reason')),
                ('params', models.JSONField(default=dict)),
                ('skipped', models.JSONField(default=dict, verbose_name='skipped')),
                ('counts', models.JSONField(default=dict)),
                ('undo_of', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='undone_by', to='chatmemory.job')),
            ],
            options={
                'verbose_name': 'job',
                'verbose_name_plural': 'jobs',
                'default_permissions': (),
                'base_manager_name': 'objects',
            },
        ),
        migrations.CreateModel(
            name='JobItem',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('session_pk', models.BigIntegerField()),
                ('epoch', models.BigIntegerField()),
                ('entry_pk', models.BigIntegerField(null=True)),
                ('messages', models.BigIntegerField(db_default=0)),
                ('scope', chatmemory.models.fields.KeyField(db_default='', max_length=150)),
                ('key', chatmemory.models.fields.KeyField(db_default='', max_length=200)),
                ('outcome', models.CharField(db_default='', max_length=32)),
                ('job', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='items', to='chatmemory.job')),
            ],
            options={
                'verbose_name': 'job item',
                'verbose_name_plural': 'job items',
                'default_permissions': (),
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
                ('action', models.CharField(max_length=32)),
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
                'default_permissions': (),
                'base_manager_name': 'objects',
                'indexes': [models.Index(fields=['actor_id', 'created_at'], name='chatmemory_audit_actor'), models.Index(fields=['key_hash'], name='chatmemory_audit_key'), models.Index(fields=['created_at'], name='chatmemory_audit_time'), chatmemory.models.indexes.PartialIndex(fields=['id'], name='chatmemory_audit_no_reading', where=models.Q(('action', 'read'), _negated=True))],
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
                ('ttl_seconds', models.IntegerField(null=True)),
                ('archived_at', models.DateTimeField(null=True, verbose_name='archived at')),
                ('pinned_at', models.DateTimeField(null=True, verbose_name='pinned at')),
                ('held_at', models.DateTimeField(null=True, verbose_name='on hold since')),
                ('removed_at', models.DateTimeField(null=True, verbose_name='purged at')),
                ('removed_scope', chatmemory.models.fields.KeyField(db_default='', db_index=True, max_length=150)),
                ('origin', chatmemory.models.fields.KeyField(max_length=250, null=True)),
                ('origin_row', chatmemory.models.fields.KeyField(max_length=200, null=True)),
                ('created_at', models.DateTimeField(db_default=chatmemory.models.fields.DatabaseNow(), verbose_name='created at')),
                ('owner', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL, verbose_name='owner')),
            ],
            options={
                'verbose_name': 'conversation',
                'verbose_name_plural': 'conversations',
                'default_permissions': ('view',),
                'permissions': (('view_transcript', 'Can read transcripts'), ('view_unmasked', 'Can reveal masked transcripts'), ('trim_history', 'Can trim history'), ('clear_history', 'Can clear history'), ('purge_history', 'Can purge conversations'), ('restore_history', 'Can undo trims, clears and purges'), ('redact_message', 'Can redact messages'), ('stop_turn', 'Can stop turns'), ('archive_session', 'Can archive conversations'), ('hold_session', 'Can put conversations on hold'), ('tag_session', 'Can tag conversations'), ('note_session', 'Can read and write notes'), ('export_history', 'Can export history'), ('erase_person', 'Can erase a person'), ('view_audit', 'Can read the audit'), ('view_health', 'Can view the health of the app')),
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
                ('author', models.CharField(max_length=100, null=True, verbose_name='author')),
            ],
            options={
                'verbose_name': 'message',
                'verbose_name_plural': 'messages',
                'default_permissions': (),
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
            name='SessionNote',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('text', models.TextField(verbose_name='text')),
                ('actor_kind', models.CharField(max_length=16)),
                ('actor_id', models.CharField(max_length=150)),
                ('actor_label', models.CharField(max_length=200)),
                ('created_at', models.DateTimeField(db_default=chatmemory.models.fields.DatabaseNow(), verbose_name='created at')),
                ('session', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='notes', to='chatmemory.session')),
            ],
            options={
                'verbose_name': 'conversation note',
                'verbose_name_plural': 'conversation notes',
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
                'verbose_name': 'conversation tag',
                'verbose_name_plural': 'conversation tags',
                'default_permissions': (),
                'base_manager_name': 'objects',
            },
        ),
        migrations.CreateModel(
            name='Turn',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('session', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='turns', to='chatmemory.session')),
                ('position', models.BigIntegerField(db_default=0)),
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
                ('first_text_ms', models.IntegerField(null=True)),
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
                'default_permissions': (),
                'base_manager_name': 'objects',
            },
        ),
        migrations.CreateModel(
            name='WithdrawnRange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('session', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='withdrawn', to='chatmemory.session')),
                ('low', models.BigIntegerField()),
                ('high', models.BigIntegerField()),
                ('emptied_to', models.BigIntegerField(null=True)),
                ('withdrawn_at', models.DateTimeField(db_default=chatmemory.models.fields.DatabaseNow())),
            ],
            options={
                'verbose_name': 'withdrawn range',
                'verbose_name_plural': 'withdrawn ranges',
                'default_permissions': (),
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
            model_name='withdrawnrange',
            constraint=models.UniqueConstraint(fields=('session', 'high', 'low'), name='chatmemory_withdrawnrange_once'),
        ),
        migrations.AddConstraint(
            model_name='withdrawnrange',
            constraint=models.CheckConstraint(condition=models.Q(('low__gte', 1), ('low__lte', models.F('high'))), name='chatmemory_withdrawnrange_order'),
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
        migrations.AddIndex(
            model_name='auditentry',
            index=models.Index(fields=['action', 'id'], name='chatmemory_audit_action'),
        ),
        migrations.AddIndex(
            model_name='feedback',
            index=models.Index(fields=['value', 'changed_at'], name='chatmemory_feedback_recent'),
        ),
        migrations.AddIndex(
            model_name='session',
            index=chatmemory.models.indexes.PartialIndex(fields=['last_active_day'], name='chatmemory_session_archived', where=models.Q(('archived_at__isnull', False))),
        ),
        migrations.AddIndex(
            model_name='session',
            index=chatmemory.models.indexes.PartialIndex(fields=['last_active_day'], name='chatmemory_session_held', where=models.Q(('held_at__isnull', False))),
        ),
        migrations.AddIndex(
            model_name='session',
            index=chatmemory.models.indexes.PartialIndex(fields=['last_active_day'], name='chatmemory_session_removed', where=models.Q(('removed_at__isnull', False))),
        ),
        migrations.AddIndex(
            model_name='session',
            index=models.Index(fields=['created_at'], name='chatmemory_session_created'),
        ),
        migrations.AddIndex(
            model_name='session',
            index=chatmemory.models.indexes.PrefixIndex('key', name='chatmemory_session_key'),
        ),
        migrations.AddIndex(
            model_name='session',
            index=chatmemory.models.indexes.PrefixIndex('title', is_case_insensitive=True, name='chatmemory_session_title'),
        ),
        migrations.AddIndex(
            model_name='turn',
            index=chatmemory.models.indexes.PartialIndex(fields=['status', 'ended_at', 'error', 'session'], name='chatmemory_turn_problem', where=models.Q(('status__in', ['failed', 'interrupted']))),
        ),
        migrations.AddIndex(
            model_name='turn',
            index=chatmemory.models.indexes.PartialIndex(fields=['ended_at'], name='chatmemory_turn_ended', where=models.Q(('ended_at__isnull', False))),
        ),
        migrations.AddIndex(
            model_name='job',
            index=chatmemory.models.indexes.PartialIndex(fields=['status'], name='chatmemory_job_active', where=models.Q(('status__in', ['queued', 'running']))),
        ),
        migrations.AddConstraint(
            model_name='jobitem',
            constraint=models.UniqueConstraint(fields=('job', 'session_pk'), name='chatmemory_jobitem_once'),
        ),
        migrations.RunPython(set_storage_parameters, migrations.RunPython.noop, elidable=False),
    ]

CREATE TABLE auth_keys (
    name TEXT PRIMARY KEY,
    base64 TEXT NOT NULL
) STRICT;
CREATE TABLE auth_pending_registrations (
    id TEXT PRIMARY KEY,
    email_hash BLOB NOT NULL,
    email TEXT NOT NULL,
    subject TEXT,
    profile TEXT,
    began_at INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    attempts INTEGER NOT NULL
) STRICT;
CREATE INDEX auth_pending_registrations_due ON auth_pending_registrations (due_at);
CREATE TABLE auth_social_identities (
    issuer TEXT NOT NULL,
    subject TEXT NOT NULL,
    user_id TEXT NOT NULL,
    username TEXT,
    profile_saved INTEGER NOT NULL,
    refresh_token TEXT,
    PRIMARY KEY (issuer, subject)
) STRICT;
CREATE INDEX auth_social_identities_user ON auth_social_identities (user_id);
CREATE TABLE auth_social_users (
    issuer TEXT NOT NULL,
    subject TEXT NOT NULL,
    sealed TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (issuer, subject)
) STRICT;
CREATE TABLE auth_audit (
    id TEXT PRIMARY KEY,
    at INTEGER NOT NULL,
    operation TEXT NOT NULL,
    outcome TEXT NOT NULL,
    reason TEXT,
    request_id TEXT NOT NULL,
    subject TEXT,
    email_hash BLOB,
    network TEXT,
    provider TEXT
) STRICT;
CREATE INDEX auth_audit_at ON auth_audit (at);
CREATE INDEX auth_audit_subject ON auth_audit (subject, at) WHERE subject IS NOT NULL;
CREATE INDEX auth_audit_email ON auth_audit (email_hash, at) WHERE email_hash IS NOT NULL;
CREATE INDEX auth_audit_request ON auth_audit (request_id);

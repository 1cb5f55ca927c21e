//! The migrations of the store.

use postern_common::database::Migrations;

/// The migrations, in both SQL dialects.
pub(super) const MIGRATIONS: Migrations = Migrations {
    owner: "postern_auth",
    postgres: &[
        (
            1,
            "CREATE TABLE auth_keys (name TEXT PRIMARY KEY, base64 TEXT NOT NULL, created_at BIGINT NOT NULL)",
        ),
        (
            2,
            "CREATE TABLE auth_pending_registrations (id TEXT PRIMARY KEY, email TEXT NOT NULL, subject TEXT, \
             began_at BIGINT NOT NULL, due_at BIGINT NOT NULL, attempts BIGINT NOT NULL)",
        ),
        (
            3,
            "CREATE INDEX auth_pending_registrations_due ON auth_pending_registrations (due_at)",
        ),
        (
            4,
            "CREATE TABLE auth_social_identities (issuer TEXT NOT NULL, subject TEXT NOT NULL, \
             user_id TEXT NOT NULL, username TEXT, social_only BOOLEAN NOT NULL, profile_saved BOOLEAN NOT NULL, \
             refresh_token TEXT, created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL, \
             PRIMARY KEY (issuer, subject))",
        ),
        (
            5,
            "CREATE INDEX auth_social_identities_user ON auth_social_identities (user_id)",
        ),
        (
            6,
            "CREATE INDEX auth_social_identities_username ON auth_social_identities (username)",
        ),
        (
            7,
            "CREATE TABLE auth_audit (id TEXT PRIMARY KEY, at BIGINT NOT NULL, operation TEXT NOT NULL, \
             outcome TEXT NOT NULL, reason TEXT, request_id TEXT NOT NULL, subject TEXT, email_hash BYTEA, \
             network TEXT, provider TEXT)",
        ),
        (8, "CREATE INDEX auth_audit_at ON auth_audit (at)"),
        (
            9,
            "CREATE INDEX auth_audit_subject ON auth_audit (subject, at) WHERE subject IS NOT NULL",
        ),
        (
            10,
            "CREATE INDEX auth_audit_email ON auth_audit (email_hash, at) WHERE email_hash IS NOT NULL",
        ),
        (
            11,
            "CREATE INDEX auth_audit_request ON auth_audit (request_id)",
        ),
    ],
    sqlite: &[
        (
            1,
            "CREATE TABLE auth_keys (name TEXT PRIMARY KEY, base64 TEXT NOT NULL, created_at INTEGER NOT NULL) \
             STRICT",
        ),
        (
            2,
            "CREATE TABLE auth_pending_registrations (id TEXT PRIMARY KEY, email TEXT NOT NULL, subject TEXT, \
             began_at INTEGER NOT NULL, due_at INTEGER NOT NULL, attempts INTEGER NOT NULL) STRICT",
        ),
        (
            3,
            "CREATE INDEX auth_pending_registrations_due ON auth_pending_registrations (due_at)",
        ),
        (
            4,
            "CREATE TABLE auth_social_identities (issuer TEXT NOT NULL, subject TEXT NOT NULL, \
             user_id TEXT NOT NULL, username TEXT, social_only INTEGER NOT NULL, profile_saved INTEGER NOT NULL, \
             refresh_token TEXT, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, \
             PRIMARY KEY (issuer, subject)) STRICT",
        ),
        (
            5,
            "CREATE INDEX auth_social_identities_user ON auth_social_identities (user_id)",
        ),
        (
            6,
            "CREATE INDEX auth_social_identities_username ON auth_social_identities (username)",
        ),
        (
            7,
            "CREATE TABLE auth_audit (id TEXT PRIMARY KEY, at INTEGER NOT NULL, operation TEXT NOT NULL, \
             outcome TEXT NOT NULL, reason TEXT, request_id TEXT NOT NULL, subject TEXT, email_hash BLOB, \
             network TEXT, provider TEXT) STRICT",
        ),
        (8, "CREATE INDEX auth_audit_at ON auth_audit (at)"),
        (
            9,
            "CREATE INDEX auth_audit_subject ON auth_audit (subject, at) WHERE subject IS NOT NULL",
        ),
        (
            10,
            "CREATE INDEX auth_audit_email ON auth_audit (email_hash, at) WHERE email_hash IS NOT NULL",
        ),
        (
            11,
            "CREATE INDEX auth_audit_request ON auth_audit (request_id)",
        ),
    ],
};

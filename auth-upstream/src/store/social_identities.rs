//! The social identities of users and the sealed refresh tokens of their providers.

use postern_core::clock::Timestamp;
use postern_store::{from_row, with_dialect};

use super::{AuthStore, Stored, open_text, with_timeout};
use crate::crypto::KeyRing;

const SELECT_SOCIAL_IDENTITY: &str = "SELECT user_id, username, profile_saved FROM auth_social_identities \
     WHERE issuer = $1 AND subject = $2";
const INSERT_SOCIAL_IDENTITY: &str = "INSERT INTO auth_social_identities \
     (issuer, subject, user_id, username, profile_saved) \
     VALUES ($1, $2, $3, $4, $5) ON CONFLICT (issuer, subject) DO NOTHING";
const DELETE_SOCIAL_IDENTITY: &str =
    "DELETE FROM auth_social_identities WHERE issuer = $1 AND subject = $2 AND user_id = $3";
const DELETE_SOCIAL_IDENTITIES_OF: &str = "DELETE FROM auth_social_identities WHERE user_id = $1";
const COUNT_SOCIAL_IDENTITIES: &str =
    "SELECT COUNT(*) AS found FROM auth_social_identities WHERE user_id = $1";
const SAVE_PROVIDER_TOKEN: &str = "UPDATE auth_social_identities SET refresh_token = $3 \
     WHERE issuer = $1 AND subject = $2";
const MARK_PROFILE_SAVED: &str = "UPDATE auth_social_identities SET profile_saved = TRUE \
     WHERE issuer = $1 AND subject = $2";

const DELETE_OLD_USERS: &str = "DELETE FROM auth_social_users WHERE created_at < $1";
const KEEP_USER: &str = "INSERT INTO auth_social_users (issuer, subject, sealed, created_at) \
     VALUES ($1, $2, $3, $4) ON CONFLICT (issuer, subject) DO UPDATE SET sealed = $3, created_at = $4";
const SELECT_USER: &str = "SELECT sealed FROM auth_social_users WHERE issuer = $1 AND subject = $2";
const DELETE_USER: &str = "DELETE FROM auth_social_users WHERE issuer = $1 AND subject = $2";

/// The time for which a person who does not finish the sign-in is kept, in milliseconds.
const USER_RETENTION_MS: i64 = 90 * 86_400_000;

pub(crate) type SocialId<'a> = (&'a str, &'a str);

/// The user of a social identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SocialIdentity {
    /// The subject of the pool user, or a generated id if there is no pool user.
    pub(crate) user_id: String,
    /// The pool's user name; `None` if there is no pool user.
    pub(crate) username: Option<String>,
    pub(crate) profile_saved: bool,
}

from_row!(SocialIdentity {
    user_id: String,
    username: Option<String>,
    profile_saved: bool,
});

/// The sealing context of user names, followed by issuer and subject of the social identity.
const USERNAME_CONTEXT: &str = "postern social user name";
/// The sealing context of what a provider has sent once, followed by issuer and subject of the social identity.
const USER_CONTEXT: &str = "postern social user";

// === impl SocialIdentity ===

impl SocialIdentity {
    /// Returns the user name for the database: a name of its own may be an address, and is sealed.
    fn sealed_username(
        &self,
        key_ring: &KeyRing,
        (issuer, subject): SocialId<'_>,
    ) -> Option<String> {
        let name = self.username.as_deref()?;
        if name == self.user_id {
            return Some(name.to_owned());
        }
        let context = [USERNAME_CONTEXT, issuer, subject];
        Some(key_ring.seal(&context, name.as_bytes()))
    }

    /// Opens the user name. Without its key, the account is unknown.
    fn opened(mut self, key_ring: &KeyRing, (issuer, subject): SocialId<'_>) -> Self {
        if let Some(sealed) = self.username.take_if(|name| *name != self.user_id) {
            self.username = open_text(key_ring, &[USERNAME_CONTEXT, issuer, subject], &sealed);
        }
        self
    }
}

// === impl AuthStore ===

impl AuthStore {
    pub(crate) async fn social_identity(&self, id: SocialId<'_>) -> Stored<Option<SocialIdentity>> {
        let found: Option<SocialIdentity> =
            fetch!(self.writer, fetch_optional, SELECT_SOCIAL_IDENTITY; id.0, id.1)?;
        Ok(found.map(|it| it.opened(&self.key_ring, id)))
    }

    pub(crate) async fn has_social_identity(&self, user_id: &str) -> Stored<bool> {
        let (found,): (i64,) = fetch!(self.writer, fetch_one, COUNT_SOCIAL_IDENTITIES; user_id)?;
        Ok(found > 0)
    }

    /// Deletes a social identity if it belongs to this user.
    pub(crate) async fn delete_social_identity(&self, id: SocialId<'_>, user_id: &str) -> Stored {
        execute!(self, DELETE_SOCIAL_IDENTITY; id.0, id.1, user_id).map(drop)
    }

    pub(crate) async fn delete_social_identities_of(&self, user_id: &str) -> Stored {
        execute!(self, DELETE_SOCIAL_IDENTITIES_OF; user_id).map(drop)
    }

    /// Inserts the user of a social identity and returns the stored one: the first writer wins.
    pub(crate) async fn insert_social_identity(
        &self,
        id: SocialId<'_>,
        user: &SocialIdentity,
    ) -> Stored<SocialIdentity> {
        let (user_id, is_saved) = (&user.user_id, user.profile_saved);
        let username = user.sealed_username(&self.key_ring, id);
        execute!(self, INSERT_SOCIAL_IDENTITY; id.0, id.1, user_id, &username, is_saved)?;
        let stored: SocialIdentity =
            fetch!(self.writer, fetch_one, SELECT_SOCIAL_IDENTITY; id.0, id.1)?;
        Ok(stored.opened(&self.key_ring, id))
    }

    pub(crate) async fn save_provider_token(&self, id: SocialId<'_>, sealed: &str) -> Stored {
        execute!(self, SAVE_PROVIDER_TOKEN; id.0, id.1, sealed).map(drop)
    }

    /// Keeps what a provider has sent of a person until the profile is saved.
    pub(crate) async fn keep_social_user(
        &self,
        (issuer, subject): SocialId<'_>,
        user: &str,
        now: Timestamp,
    ) -> Stored {
        execute!(self, DELETE_OLD_USERS; now.0 - USER_RETENTION_MS)?;
        let context = [USER_CONTEXT, issuer, subject];
        let sealed = self.key_ring.seal(&context, user.as_bytes());
        execute!(self, KEEP_USER; issuer, subject, &sealed, now.0).map(drop)
    }

    pub(crate) async fn social_user(&self, id: SocialId<'_>) -> Stored<Option<String>> {
        let found: Option<(String,)> =
            fetch!(self.writer, fetch_optional, SELECT_USER; id.0, id.1)?;
        let context = [USER_CONTEXT, id.0, id.1];
        Ok(found.and_then(|(sealed,)| open_text(&self.key_ring, &context, &sealed)))
    }

    pub(crate) async fn mark_profile_saved(&self, id: SocialId<'_>) -> Stored {
        execute!(self, DELETE_USER; id.0, id.1)?;
        execute!(self, MARK_PROFILE_SAVED; id.0, id.1).map(drop)
    }
}

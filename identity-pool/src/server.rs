//! What every operation works with.

use std::sync::Arc;

use postern_common::Clock;
use url::Url;

use crate::delivery::CodeDelivery;
use crate::directory::Directory;
use crate::fault::Fault;
use crate::hasher::Hasher;
use crate::pool::{Client, Pool};
use crate::signing::Keys;
use crate::store::Store;
use crate::user::User;

/// The pools and all that serves them.
pub(crate) struct Server {
    pub(crate) clock: Clock,
    pub(crate) store: Store,
    pub(crate) directory: Directory,
    pub(crate) keys: Keys,
    pub(crate) hasher: Hasher,
    pub(crate) delivery: CodeDelivery,
    /// `{issuer_base}/{pool id}` is a pool's issuer.
    pub(crate) issuer_base: Url,
    pub(crate) region: String,
}

// === impl Server ===

impl Server {
    /// The `iss` of the pool's tokens.
    pub(crate) fn issuer(&self, pool_id: &str) -> String {
        format!(
            "{}/{pool_id}",
            self.issuer_base.as_str().trim_end_matches('/')
        )
    }

    /// A client with its pool.
    pub(crate) fn client(&self, client_id: &str) -> Result<(Arc<Client>, Arc<Pool>), Fault> {
        let client = self.directory.client(client_id)?;
        let pool = self.directory.pool(&client.pool_id)?;
        Ok((client, pool))
    }

    /// The user that a person means by what it typed: the real username, or the address where the
    /// pool takes one.
    pub(crate) async fn typed_user(&self, pool: &Pool, typed: &str) -> Result<Option<User>, Fault> {
        let found = self.store.user(&pool.id, typed).await?;
        Ok(found.filter(|user| pool.settings.email_usernames || user.username == typed))
    }

    /// The user that an administrator names, by username, address or `sub`.
    pub(crate) async fn known_user(&self, pool_id: &str, name: &str) -> Result<User, Fault> {
        self.store
            .user(pool_id, name)
            .await?
            .ok_or_else(Fault::user_not_found)
    }
}

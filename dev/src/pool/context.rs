//! Dependencies of the operations.

use std::sync::Arc;

use postern_common::Clock;
use url::Url;

use crate::pool::code_delivery::CodeDelivery;
use crate::pool::crypto::{PasswordHasher, SigningKeys};
use crate::pool::directory::PoolDirectory;
use crate::pool::error::ApiError;
use crate::pool::model::{AppClient, User, UserPool};
use crate::pool::operations::Lockouts;
use crate::pool::store::PoolStore;

/// The state and services that operations use.
pub(crate) struct PoolContext {
    pub(crate) clock: Clock,
    pub(crate) store: PoolStore,
    pub(crate) directory: PoolDirectory,
    pub(crate) keys: SigningKeys,
    pub(crate) hasher: PasswordHasher,
    pub(crate) lockouts: Lockouts,
    pub(crate) delivery: CodeDelivery,
    /// A pool's issuer is `{issuer_base}/{pool id}`.
    pub(crate) issuer_base: Url,
    pub(crate) region: String,
}

// === impl PoolContext ===

impl PoolContext {
    /// Returns the issuer (`iss`) of the pool's tokens.
    pub(crate) fn issuer(&self, pool_id: &str) -> String {
        format!(
            "{}/{pool_id}",
            self.issuer_base.as_str().trim_end_matches('/')
        )
    }

    /// Returns a client and its pool.
    pub(crate) fn client(
        &self,
        client_id: &str,
    ) -> Result<(Arc<AppClient>, Arc<UserPool>), ApiError> {
        let client = self.directory.client(client_id)?;
        let pool = self.directory.pool(&client.pool_id)?;
        Ok((client, pool))
    }

    /// Finds the user for a name entered at sign-in: a real username, or an address where the pool
    /// permits it.
    pub(crate) async fn find_entered_user(
        &self,
        pool: &UserPool,
        entered: &str,
    ) -> Result<Option<User>, ApiError> {
        let found = self.store.user(&pool.id, entered).await?;
        Ok(found.filter(|user| pool.settings.email_usernames || user.username == entered))
    }

    /// Finds a user for an administrator, by username, address, or `sub`.
    pub(crate) async fn find_user(&self, pool_id: &str, name: &str) -> Result<User, ApiError> {
        self.store
            .user(pool_id, name)
            .await?
            .ok_or_else(ApiError::user_not_found)
    }
}

//! Dependencies of the operations.

use std::sync::Arc;

use postern_core::Clock;
use postern_core::identity::SocialProofKey;
use url::Url;

use crate::pool::crypto::SigningKeys;
use crate::pool::error::{ApiError, ApiResult, ExceptionKind};
use crate::pool::model::{AppClient, User, UserPool, user_id};
use crate::pool::store::PoolStore;

/// The state and services that operations use.
pub(crate) struct PoolContext {
    pub(crate) clock: Clock,
    pub(crate) store: PoolStore,
    pub(crate) keys: SigningKeys,
    /// A pool's issuer is `{issuer_base}/{pool id}`.
    pub(crate) issuer_base: Url,
    /// The key of CUSTOM_AUTH, which the pool does not have without it.
    pub(crate) social_proof_key: Option<Arc<SocialProofKey>>,
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

    pub(crate) fn pool(&self, id: &str) -> ApiResult<UserPool> {
        let found = self.store.pools.get(id);
        found.ok_or_else(|| not_found("User pool", id))
    }

    pub(crate) async fn update_pool(
        &self,
        id: &str,
        change: impl FnOnce(&mut UserPool) -> ApiResult,
    ) -> ApiResult {
        let update = self.store.pools.update(id, |stored| match stored {
            Some(pool) => change(pool),
            None => Err(not_found("User pool", id)),
        });
        update.await
    }

    /// Returns a client and its pool.
    pub(crate) fn client(&self, client_id: &str) -> ApiResult<(AppClient, UserPool)> {
        let client = self
            .store
            .clients
            .get(client_id)
            .ok_or_else(|| not_found("User pool client", client_id))?;
        let pool = self.pool(&client.pool_id)?;
        Ok((client, pool))
    }

    /// Finds a user by real username, or by `sub` or address where the pool permits these at
    /// sign-in.
    pub(crate) fn find_entered_user(&self, pool: &UserPool, entered: &str) -> Option<User> {
        let found = self.find_user(&pool.id, entered).ok();
        found.filter(|user| pool.settings.email_usernames || user.username == entered)
    }

    /// Finds a user for an administrator, by username, address, or `sub`.
    pub(crate) fn find_user(&self, pool_id: &str, name: &str) -> ApiResult<User> {
        let users = &self.store.users;
        let alias = Some(name.to_lowercase());
        let is_named =
            |user: &User| user.pool_id == pool_id && (user.sub == name || user.alias == alias);
        users
            .get(&user_id(pool_id, name))
            .or_else(|| users.find(is_named))
            .ok_or_else(ApiError::user_not_found)
    }

    /// Changes the current state of a user. Returns the user after the change.
    pub(crate) async fn update_user(
        &self,
        user: &User,
        change: impl FnOnce(&mut User) -> ApiResult,
    ) -> ApiResult<User> {
        let now = self.clock.now().0;
        let id = user.id();
        let update = self.store.users.update(&id, |stored| {
            let user = stored.as_mut().ok_or_else(ApiError::user_not_found)?;
            change(user)?;
            user.updated_at = now;
            Ok(user.clone())
        });
        update.await
    }
}

pub(crate) fn not_found(what: &str, id: &str) -> ApiError {
    ApiError::new(
        ExceptionKind::ResourceNotFound,
        format!("{what} {id} does not exist."),
    )
}

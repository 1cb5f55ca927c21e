//! Dependencies of the operations.

use postern_core::Clock;
use postern_core::identity::SocialProofKey;

use crate::pool::bootstrap::ACTOR_POOL;
use crate::pool::error::{ApiError, ApiResult};
use crate::pool::model::{AppClient, User, UserPool, user_id};
use crate::pool::store::PoolStore;
use crate::pool::tokens::TOKEN_S;

/// The state and services that operations use.
pub(crate) struct PoolContext {
    pub(crate) clock: Clock,
    pub(crate) store: PoolStore,
    /// Base URL of the API, without a trailing slash. A pool's issuer is `{endpoint}/{pool id}`.
    pub(crate) endpoint: String,
    /// The key of CUSTOM_AUTH, which the pool does not have without it.
    pub(crate) social_proof_key: Option<SocialProofKey>,
    /// Lifetime of the access tokens of users in seconds.
    pub(crate) user_access_token_s: u64,
}

// === impl PoolContext ===

impl PoolContext {
    /// Returns the issuer (`iss`) of the pool's tokens.
    pub(crate) fn issuer(&self, pool_id: &str) -> String {
        format!("{}/{pool_id}", self.endpoint)
    }

    /// Returns the lifetime of the pool's access tokens in seconds.
    pub(crate) fn access_token_s(&self, pool: &UserPool) -> u64 {
        if pool.name == ACTOR_POOL {
            self.user_access_token_s
        } else {
            TOKEN_S
        }
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
        let client = self.store.clients.get(client_id);
        let client = client.ok_or_else(|| not_found("User pool client", client_id))?;
        let pool = self.pool(&client.user_pool_id)?;
        Ok((client, pool))
    }

    /// Finds a user by real username, or by `sub` or address where the pool permits these at
    /// sign-in.
    pub(crate) fn find_entered_user(&self, pool: &UserPool, entered: &str) -> Option<User> {
        let found = self.find_user(&pool.id, entered).ok();
        found.filter(|user| pool.has_email_usernames() || user.username == entered)
    }

    /// Finds a user for an administrator, by username, `sub`, or in a pool whose users sign in with
    /// their address, by that.
    pub(crate) fn find_user(&self, pool_id: &str, name: &str) -> ApiResult<User> {
        let users = &self.store.users;
        let address = name.to_lowercase();
        let is_address = |user: &User| {
            let email = user.email().filter(|_| user.username == user.sub);
            email.is_some_and(|email| email.to_lowercase() == address)
        };
        let is_named =
            |user: &User| user.pool_id == pool_id && (user.sub == name || is_address(user));
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
        "ResourceNotFoundException",
        format!("{what} {id} does not exist."),
    )
}

//! `POST /api/session`, the older name of sign-in and refresh, and `GET /auth/me`.

use std::sync::Arc;

use postern_common::Problem;
use postern_common::clock::Timestamp;
use postern_common::token::Caller;
use serde_json::{Value, json};

use crate::auth::{Auth, Visitor};
use crate::login::Login;
use crate::token_set::TokenSet;

/// What the older name takes: one or the other.
#[derive(Clone, Debug)]
pub(crate) enum Older {
    Login(Login),
    Refresh(String),
}

// === impl Auth ===

impl Auth {
    /// Sign-in or refresh, by what was sent.
    pub(crate) async fn session(
        self: &Arc<Self>,
        visitor: &Visitor,
        request: &Older,
    ) -> Result<TokenSet, Problem> {
        match request {
            Older::Login(login) => self.login(visitor, login).await,
            Older::Refresh(token) => self.refresh(visitor, token).await,
        }
    }

    /// The caller as this service sees it: the token is verified here again, whoever let it through
    /// before.
    pub(crate) async fn me(&self, token: &str) -> Result<Value, Problem> {
        Ok(describe(&self.verifier.verify(token).await?))
    }
}

fn describe(caller: &Caller) -> Value {
    let expires_at = Timestamp::from_unix_seconds(caller.expires_at());
    match caller {
        Caller::User(user) => json!({
            "kind": "user",
            "issuer": &*user.issuer,
            "userId": &*user.subject,
            "username": &*user.username,
            "clientId": &*user.client_id,
            "scopes": &*user.scopes,
            "groups": &*user.groups,
            "expiresAt": expires_at,
        }),
        Caller::Service(service) => json!({
            "kind": "service",
            "issuer": &*service.issuer,
            "serviceId": &*service.service_id,
            "subject": &*service.subject,
            "scopes": &*service.scopes,
            "expiresAt": expires_at,
        }),
    }
}

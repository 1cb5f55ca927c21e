//! `GET /auth/me`: the verified claims of the caller's access token.

use std::sync::Arc;

use postern_common::Problem;
use postern_common::clock::Timestamp;
use postern_common::token::{Caller, Verifier};
use serde_json::{Value, json};

/// Describes the caller of a request.
#[derive(Debug)]
pub(crate) struct CurrentUserFlow {
    pub(crate) verifier: Arc<Verifier>,
}

// === impl CurrentUserFlow ===

impl CurrentUserFlow {
    /// Verifies an access token, regardless of an earlier verification by the gateway, and returns
    /// the caller that it identifies.
    pub(crate) async fn describe(&self, token: &str) -> Result<Value, Problem> {
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

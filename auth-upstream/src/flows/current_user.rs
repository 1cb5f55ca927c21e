//! `GET /auth/me`: the verified claims of the caller's access token, and the profile.

use http::HeaderMap;
use postern_core::Problem;
use postern_core::clock::Timestamp;
use postern_core::token::Caller;
use postern_service::http::authenticate;
use serde_json::{Value, json};

use super::Flows;

// === impl Flows ===

impl Flows {
    /// Verifies an access token, regardless of an earlier verification by the gateway, and returns
    /// the caller that it identifies. The `profile` of a user of the actor pool is `null` if there is
    /// none, and absent if the actor service does not say.
    pub(crate) async fn describe_caller(&self, headers: &HeaderMap) -> Result<Value, Problem> {
        let caller = authenticate(headers, &self.verifier).await?;
        let mut described = describe(&caller);
        if let Caller::User(user) = &caller
            && *user.issuer == *self.actor_issuer
            && let Ok(profile) = self.actor_service.profile(&user.subject).await
        {
            described["profile"] = profile;
        }
        Ok(described)
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

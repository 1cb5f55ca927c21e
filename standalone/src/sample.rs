//! Sample actor and document services: foreign to Postern, small, and honest about storing what
//! they get.
//!
//! They trust no network location and no `X-Postern-…` header: each verifies the token of every
//! request itself, as any service behind the gateway should.

pub(crate) mod actor;
pub(crate) mod document;
mod multipart;
#[cfg(test)]
mod testing;

use axum::extract::FromRequestParts;
use http::request::Parts;
use postern_common::http::bearer;
use postern_common::problem::{Code, Problem};
use postern_common::token::{self, Service, User, Verifier};
use std::sync::Arc;

/// Who calls, verified from the request's own token.
#[derive(Debug)]
pub(crate) struct Caller(pub(crate) token::Caller);

// === impl Caller ===

impl Caller {
    /// The calling user.
    fn user(&self) -> Result<&Arc<User>, Problem> {
        self.0.user().ok_or_else(|| Code::UserRequired.into())
    }

    /// The calling service, if it is on the list.
    fn service(&self, allowed: &[&str]) -> Result<&Arc<Service>, Problem> {
        let service = self
            .0
            .service()
            .filter(|service| allowed.contains(&&*service.service_id));
        service.ok_or_else(|| Code::ServiceNotAllowed.into())
    }

    /// Whether the caller may see what belongs to this subject: the user itself, and every service.
    fn may_see(&self, subject: &str) -> bool {
        match &self.0 {
            token::Caller::User(user) => *user.subject == *subject,
            token::Caller::Service(_) => true,
        }
    }
}

/// A state that has the verifier.
pub(crate) trait Verifies: Send + Sync {
    /// The verifier of this service.
    fn verifier(&self) -> &Verifier;
}

impl<S: Verifies> FromRequestParts<Arc<S>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<S>) -> Result<Self, Problem> {
        Ok(Self(
            state.verifier().verify(bearer(&parts.headers)?).await?,
        ))
    }
}

/// A store that failed: away is 503, anything else is ours.
fn store_failed(error: &sqlx::Error) -> Problem {
    tracing::error!(%error, "sample store");
    let away = postern_common::database::is_unavailable(error);
    Problem::new(if away {
        Code::Unavailable
    } else {
        Code::Internal
    })
}

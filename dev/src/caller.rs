//! The caller of the actor and document services, verified from its token.

use axum::extract::FromRequestParts;
use http::request::Parts;
use postern_common::http::bearer;
use postern_common::problem::{Code, Problem};
use postern_common::token::{self, Service, User, Verifier};
use std::sync::Arc;

/// The caller, verified from the request's token.
#[derive(Debug)]
pub(crate) struct VerifiedCaller(pub(crate) token::Caller);

// === impl VerifiedCaller ===

impl VerifiedCaller {
    /// Returns the calling user. Fails if the caller is a service.
    pub(crate) fn user(&self) -> Result<&Arc<User>, Problem> {
        self.0.user().ok_or_else(|| Code::UserRequired.into())
    }

    /// Returns the calling service if it is in `allowed`.
    pub(crate) fn service(&self, allowed: &[&str]) -> Result<&Arc<Service>, Problem> {
        let service = self.0.service().ok_or(Code::ServiceRequired)?;
        let is_allowed = allowed.contains(&&*service.service_id);
        is_allowed
            .then_some(service)
            .ok_or_else(|| Code::ServiceNotAllowed.into())
    }

    /// Returns whether the caller may see every candidate: recruiters, and every service.
    pub(crate) fn is_recruiter(&self) -> bool {
        self.0.user().is_none_or(|user| {
            let mut groups = user.groups.iter();
            groups.any(|group| group == RECRUITERS_GROUP)
        })
    }

    /// Returns whether the caller may access data of this subject: the user itself, and every
    /// service.
    pub(crate) fn may_see(&self, subject: &str) -> bool {
        match &self.0 {
            token::Caller::User(user) => *user.subject == *subject,
            token::Caller::Service(_) => true,
        }
    }
}

/// Group whose members see all candidates and their resumes.
const RECRUITERS_GROUP: &str = "recruiters";

/// Router state that provides a token verifier.
pub(crate) trait ProvidesVerifier: Send + Sync {
    /// Returns the verifier of the service.
    fn verifier(&self) -> &Verifier;
}

impl<S: ProvidesVerifier> FromRequestParts<Arc<S>> for VerifiedCaller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<S>) -> Result<Self, Problem> {
        Ok(Self(
            state.verifier().verify(bearer(&parts.headers)?).await?,
        ))
    }
}

/// Converts a store error: 503 if the store is unavailable, otherwise 500.
pub(crate) fn store_error(error: &sqlx::Error) -> Problem {
    tracing::error!(%error, "sample store failed");
    let is_unavailable = postern_common::database::is_unavailable(error);
    Problem::new(if is_unavailable {
        Code::Unavailable
    } else {
        Code::Internal
    })
}

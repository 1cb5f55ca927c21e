//! What the actor and document services share: the caller, verified from its token, and common
//! responses.

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::LOCATION;
use http::request::Parts;
use postern_core::problem::{Code, Problem};
use postern_core::token::{self, Service, User};
use postern_service::http::{bearer, json};
use std::sync::Arc;

use crate::samples::Samples;

#[derive(Debug)]
pub(crate) struct VerifiedCaller(pub(crate) token::Caller);

// === impl VerifiedCaller ===

impl VerifiedCaller {
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

    pub(crate) fn recruiter(&self) -> Result<(), Problem> {
        let is_recruiter = self.is_recruiter();
        is_recruiter
            .then_some(())
            .ok_or_else(|| Code::InsufficientScope.into())
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

impl FromRequestParts<Arc<Samples>> for VerifiedCaller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<Samples>) -> Result<Self, Problem> {
        Ok(Self(state.verifier.verify(bearer(&parts.headers)?).await?))
    }
}

pub(crate) fn created(location: &str, body: &impl serde::Serialize) -> Response {
    ([(LOCATION, location)], json(StatusCode::CREATED, body)).into_response()
}

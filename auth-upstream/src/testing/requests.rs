//! Requests of the flows with the values that tests need.

use postern_core::Secret;
use postern_core::email::EmailAddress;

use crate::flows::{LoginRequest, RegistrationRequest, ResetRequest};

pub(crate) fn email(text: &str) -> EmailAddress {
    EmailAddress::parse(text).expect("an address")
}

pub(crate) fn login(address: &str, password: &str) -> LoginRequest {
    LoginRequest {
        email: email(address),
        password: Secret::from(password),
    }
}

pub(crate) fn registration(address: &str, password: &str) -> RegistrationRequest {
    let profile = [("firstName".to_owned(), "Ada".into())]
        .into_iter()
        .collect();
    RegistrationRequest {
        email: email(address),
        password: Secret::from(password),
        profile,
    }
}

pub(crate) fn reset(address: &str, code: &str, new_password: &str) -> ResetRequest {
    ResetRequest {
        email: email(address),
        code: code.to_owned(),
        new_password: Secret::from(new_password),
    }
}

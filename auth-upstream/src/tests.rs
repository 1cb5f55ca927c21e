//! Tests of the flows against the development services.

mod account_codes;
mod accounts;
mod admin;
mod attempt_limits;
mod audit_trail;
mod authorization_state;
mod concurrent_attempts;
mod diagnostics;
mod hostile_provider;
mod http;
mod limits;
mod password_flows;
mod readiness;
mod refresh;
mod registration;
mod registration_crash;
mod resets;
mod second_factor;
mod social_account;
mod social_sign_in;

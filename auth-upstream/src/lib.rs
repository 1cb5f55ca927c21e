//! The authentication upstream: sign-in, registration, social sign-in and tokens.
//!
//! The service speaks Amazon Cognito's protocol and keeps no sessions: a client holds JWTs of the
//! pool and a refresh token that is sealed here. [`App`] is the process.

/// Defines an enum of values with stable names, as in labels, keys and responses.
macro_rules! named {
    ($(#[$meta:meta])* $enum:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $enum {
            $($(#[$doc])* $variant,)+
        }

        impl $enum {
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

mod app;
mod assembly;
mod config;
mod diagnostics;
mod http;

mod flows;
mod protection;
mod service_endpoint;

mod account_messages;
mod actor_service;
mod audit_trail;
mod pool;
mod store;

mod client;
mod crypto;
mod telemetry;

pub use app::App;
pub use audit_trail::AuditReader;
pub use config::{
    ClientAuthentication, Config, ConfirmationMode, SocialConfig, SocialProviderConfig,
    SocialProviderSettings, TokenDelivery,
};
pub use diagnostics::{check_configuration, check_without_database};
pub use pool::client::{AwsCredentials, pool_client};
pub use postern_service::startup::Listeners;
pub use protection::AttemptLimits;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

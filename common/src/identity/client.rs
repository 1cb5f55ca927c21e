use std::time::Duration;

use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_sdk_cognitoidentityprovider::Client;
use aws_sdk_cognitoidentityprovider::config::retry::RetryConfig;
use aws_sdk_cognitoidentityprovider::config::timeout::TimeoutConfig;
use aws_sdk_cognitoidentityprovider::config::{
    Builder, Credentials, IdentityCache, Region, StalledStreamProtectionConfig,
};

use super::IdentityConfig;
use crate::Secret;

/// What signs administrative calls. Sign-in, refresh and registration are not signed and need none.
#[derive(Clone, Debug)]
pub enum AwsCredentials {
    /// Keys that the operator gave.
    Static {
        /// The public half.
        access_key_id: String,
        /// The secret half.
        secret_access_key: Secret,
        /// For temporary credentials.
        session_token: Option<Secret>,
    },
    /// Amazon's usual order: environment, profile, web identity, container, instance.
    DefaultChain,
}

// === impl IdentityConfig ===

impl IdentityConfig {
    /// A client of the pools' protocol. It reads nothing from the environment unless
    /// [`AwsCredentials::DefaultChain`] asks for that. It connects within 1 s; a call with its one
    /// repetition takes at most 5 s.
    pub async fn client(&self, credentials: Option<AwsCredentials>) -> Client {
        let config = self.client_config();
        let config = match credentials {
            None => config.identity_cache(IdentityCache::no_cache()),
            Some(AwsCredentials::Static {
                access_key_id,
                secret_access_key,
                session_token,
            }) => {
                let session_token = session_token.map(|token| token.expose().to_owned());
                let secret = secret_access_key.expose();
                let keys = Credentials::new(access_key_id, secret, session_token, None, "postern");
                config.credentials_provider(keys)
            }
            Some(AwsCredentials::DefaultChain) => {
                let region = Region::new(self.region.clone());
                let chain =
                    Box::pin(DefaultCredentialsChain::builder().region(region).build()).await;
                config.credentials_provider(chain)
            }
        };
        Client::from_conf(config.build())
    }

    /// The same without credentials: for sign-in, refresh and registration.
    #[must_use]
    pub fn unsigned_client(&self) -> Client {
        Client::from_conf(
            self.client_config()
                .identity_cache(IdentityCache::no_cache())
                .build(),
        )
    }

    fn client_config(&self) -> Builder {
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(Duration::from_secs(1))
            // For all attempts together: one that a busy pool is late with is not made again, at
            // the price of another hash.
            .operation_timeout(Duration::from_secs(5))
            .build();
        let config = Builder::new()
            .region(Region::new(self.region.clone()))
            .timeout_config(timeouts)
            // Answers are a few kilobytes, and the deadlines above bound a slow one.
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .retry_config(RetryConfig::standard().with_max_attempts(2));
        match &self.endpoint {
            Some(endpoint) => config.endpoint_url(endpoint.as_str()),
            None => config,
        }
    }
}

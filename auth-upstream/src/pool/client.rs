//! Clients of Cognito's API by Amazon's SDK.

use std::time::Duration;

#[cfg(feature = "aws-credential-chain")]
use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_sdk_cognitoidentityprovider::Client;
use aws_sdk_cognitoidentityprovider::config::retry::RetryConfig;
use aws_sdk_cognitoidentityprovider::config::timeout::TimeoutConfig;
use aws_sdk_cognitoidentityprovider::config::{
    Builder, Credentials, IdentityCache, Region, StalledStreamProtectionConfig,
};
use postern_core::identity::IdentityConfig;

/// Credentials for signed, administrative calls. Sign-in, refresh and registration are not signed.
#[derive(Clone, Debug)]
pub enum AwsCredentials {
    /// Access keys that the operator configures.
    Static(Credentials),
    /// Amazon's default provider chain: environment, profile, web identity, container, instance
    /// metadata.
    #[cfg(feature = "aws-credential-chain")]
    DefaultChain,
}

/// Creates a client of the pool API. It reads the environment only with
/// [`AwsCredentials::DefaultChain`]. A call takes at most `deadline`, and the SDK repeats none: the
/// flows decide what is retried.
pub async fn pool_client(
    identity: &IdentityConfig,
    credentials: Option<AwsCredentials>,
    deadline: Duration,
) -> Client {
    let config = client_config(identity, deadline);
    let config = match credentials {
        None => config.identity_cache(IdentityCache::no_cache()),
        Some(AwsCredentials::Static(keys)) => config.credentials_provider(keys),
        #[cfg(feature = "aws-credential-chain")]
        Some(AwsCredentials::DefaultChain) => {
            let region = Region::new(identity.region.clone());
            let chain = Box::pin(DefaultCredentialsChain::builder().region(region).build()).await;
            config.credentials_provider(chain)
        }
    };
    Client::from_conf(config.build())
}

fn client_config(identity: &IdentityConfig, deadline: Duration) -> Builder {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(1).min(deadline))
        .operation_timeout(deadline)
        .build();
    let config = Builder::new()
        .region(Region::new(identity.region.clone()))
        .timeout_config(timeouts)
        // Responses are a few kilobytes, and the timeouts above bound slow ones.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .retry_config(RetryConfig::disabled());
    match &identity.endpoint {
        Some(endpoint) => config.endpoint_url(endpoint.as_str()),
        None => config,
    }
}

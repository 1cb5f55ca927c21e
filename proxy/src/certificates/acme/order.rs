//! One order for a certificate (RFC 8555 section 7.4).

use std::time::Duration;

use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, ChallengeType, Error, Identifier, NewAccount,
    NewOrder, Order, OrderStatus, RetryPolicy,
};

use crate::certificates::acme::client::AcmeHttpClient;
use crate::certificates::acme::store::{AcmeStore, StoreFile};
use crate::config::AcmeConfig;

/// Polling of the order. The server may ask for longer delays.
const POLLING: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(250))
    .timeout(Duration::from_secs(120));

/// Maximum length of an error text in characters.
const MAX_ERROR_CHARACTERS: usize = 300;

/// Returns another error than one of the server.
pub(super) fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Other(error.into())
}

/// Returns the text of an error with its causes, on one line. It may be one of the server; keys and
/// key authorizations occur in none.
pub(super) fn bounded(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    let one_line = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    one_line.take(MAX_ERROR_CHARACTERS).collect()
}

/// Returns the account of the store, which is created at the server if there is none.
pub(super) async fn open_account(
    config: &AcmeConfig,
    store: &AcmeStore,
    client: AcmeHttpClient,
) -> Result<Account, Error> {
    let directory = config.directory.to_string();
    let file = account_name(&directory);
    let builder = Account::builder_with_http(Box::new(client));
    let stored = store.read(StoreFile::Account(&file));
    if let Some(stored) = stored.map_err(other)? {
        let credentials: AccountCredentials =
            serde_json::from_slice(&stored).map_err(|_| other("the stored account is damaged"))?;
        return builder.from_credentials(credentials).await;
    }
    let account = NewAccount {
        contact: &[],
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let (account, credentials) = builder.create(&account, directory, None).await?;
    let stored = serde_json::to_vec(&credentials)?;
    let written = store.write(StoreFile::Account(&file), &stored);
    written.map(|()| account).map_err(other)
}

/// Returns a file name for a directory URL: its SHA-256 digest, shortened.
fn account_name(directory: &str) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, directory.as_bytes());
    hex::encode(&digest.as_ref()[..8])
}

/// Orders a certificate. Returns its private key and chain in PEM, as the server has sent it.
pub(super) async fn order_certificate(
    account: &Account,
    store: &AcmeStore,
    domain: &str,
) -> Result<String, Error> {
    let identifiers = [Identifier::Dns(domain.to_owned())];
    let mut order = account.new_order(&NewOrder::new(&identifiers)).await?;
    answer_challenges(&mut order, store, domain).await?;
    let status = order.poll_ready(&POLLING).await?;
    if status != OrderStatus::Ready {
        return Err(validation_error(&mut order).await);
    }
    let key = order.finalize().await?;
    let chain = order.poll_certificate(&POLLING).await?;
    Ok(format!("{key}{chain}"))
}

/// Stores the responses to the challenges of the order, and asks the server to validate them.
async fn answer_challenges(
    order: &mut Order,
    store: &AcmeStore,
    domain: &str,
) -> Result<(), Error> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status == AuthorizationStatus::Valid {
            continue;
        }
        let challenge = authorization.challenge(ChallengeType::TlsAlpn01);
        let mut challenge = challenge
            .ok_or_else(|| other("the server does not offer the challenge tls-alpn-01"))?;
        let key_authorization = challenge.key_authorization();
        let file = StoreFile::Challenge(domain);
        let written = store.write(file, key_authorization.as_str().as_bytes());
        written.map_err(other)?;
        challenge.set_ready().await?;
    }
    Ok(())
}

/// Returns why the server has not validated a challenge.
async fn validation_error(order: &mut Order) -> Error {
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let Ok(state) = authorization.refresh().await else {
            continue;
        };
        let error = state
            .challenges
            .iter()
            .find_map(|challenge| challenge.error.clone());
        if let Some(error) = error {
            return Error::Api(error);
        }
    }
    other("the server refused the order")
}

//! One order for a certificate (RFC 8555 section 7.4).

use std::time::Duration;

use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, ChallengeType, Error, Identifier, NewAccount,
    NewOrder, Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};

use crate::certificates::acme::client::AcmeHttpClient;
use crate::certificates::acme::store::{AcmeStore, StoreFile};
use crate::config::AcmeConfig;

/// Polling of the order. The server may ask for longer delays.
const POLLING: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(250))
    .timeout(Duration::from_secs(120));

/// The reason why there is no certificate. Texts of the server are logged, so that they are
/// truncated; keys and key authorizations occur in none.
#[derive(Debug, thiserror::Error)]
pub(super) enum OrderError {
    #[error("{}", bounded(.0))]
    Acme(#[from] Error),
    #[error("store: {0}")]
    Store(#[from] std::io::Error),
    #[error("{0}")]
    Refused(String),
}

/// Maximum length of an error text in characters.
const MAX_ERROR_CHARACTERS: usize = 300;

/// Returns the text of an error with its causes, on one line.
fn bounded(error: &Error) -> String {
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
) -> Result<Account, OrderError> {
    let directory = config.directory.to_string();
    let file = account_name(&directory);
    let builder = Account::builder_with_http(Box::new(client));
    if let Some(stored) = store.read(StoreFile::Account(&file))? {
        let credentials: AccountCredentials = serde_json::from_slice(&stored)
            .map_err(|_| OrderError::Refused("the stored account is damaged".to_owned()))?;
        return Ok(builder.from_credentials(credentials).await?);
    }
    let contact: Vec<&str> = config.contact.iter().map(String::as_str).collect();
    let account = NewAccount {
        contact: &contact,
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let (account, credentials) = builder.create(&account, directory, None).await?;
    let stored = serde_json::to_vec(&credentials).map_err(Error::from)?;
    store.write(StoreFile::Account(&file), &stored)?;
    Ok(account)
}

/// Returns a file name for a directory URL: its SHA-256 digest, shortened.
fn account_name(directory: &str) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, directory.as_bytes());
    let bytes = digest.as_ref().iter().take(8);
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

/// Orders a certificate. Returns its private key and chain in PEM, as the server has sent it.
pub(super) async fn order_certificate(
    account: &Account,
    store: &AcmeStore,
    domain: &str,
) -> Result<String, OrderError> {
    let identifiers = [Identifier::Dns(domain.to_owned())];
    let mut order = account.new_order(&NewOrder::new(&identifiers)).await?;
    answer_challenges(&mut order, store, domain).await?;
    let status = order.poll_ready(&POLLING).await?;
    if status != OrderStatus::Ready {
        return Err(OrderError::Refused(validation_error(&mut order).await));
    }
    let key = KeyPair::generate().map_err(|error| OrderError::Refused(error.to_string()))?;
    let csr = CertificateParams::new(vec![domain.to_owned()]).and_then(|mut params| {
        params.distinguished_name = DistinguishedName::new();
        params.serialize_request(&key)
    });
    let csr = csr.map_err(|error| OrderError::Refused(error.to_string()))?;
    order.finalize_csr(csr.der()).await?;
    let chain = order.poll_certificate(&POLLING).await?;
    Ok(format!("{}{chain}", key.serialize_pem()))
}

/// Stores the responses to the challenges of the order, and asks the server to validate them.
async fn answer_challenges(
    order: &mut Order,
    store: &AcmeStore,
    domain: &str,
) -> Result<(), OrderError> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        match authorization.status {
            AuthorizationStatus::Pending => {}
            AuthorizationStatus::Valid => continue,
            AuthorizationStatus::Invalid
            | AuthorizationStatus::Revoked
            | AuthorizationStatus::Expired
            | AuthorizationStatus::Deactivated => {
                return Err(OrderError::Refused(
                    "the authorization is not valid".to_owned(),
                ));
            }
        }
        if authorization.identifier().to_string() != domain {
            return Err(OrderError::Refused(
                "the server asks for the authorization of another name".to_owned(),
            ));
        }
        let challenge = authorization.challenge(ChallengeType::TlsAlpn01);
        let mut challenge = challenge.ok_or_else(|| {
            OrderError::Refused("the server does not offer the challenge tls-alpn-01".to_owned())
        })?;
        let key_authorization = challenge.key_authorization();
        let file = StoreFile::Challenge(domain);
        store.write(file, key_authorization.as_str().as_bytes())?;
        challenge.set_ready().await?;
    }
    Ok(())
}

/// Returns why the server has not validated a challenge.
async fn validation_error(order: &mut Order) -> String {
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
            return bounded(&Error::Api(error));
        }
    }
    "the server refused the order".to_owned()
}

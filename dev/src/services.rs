//! All pretended systems over one data folder.
//!
//! Input: a data folder and bound sockets. Output: running services and their credentials.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use postern_core::config::{self, Env};
use postern_core::exit::Exit;
use postern_core::identity::{IdentityConfig, SOCIAL_PROOF_KEY, SocialProofKey};
use postern_core::token::{Verifier, VerifierOptions};
use postern_core::{Clock, Secret};
use postern_service::http::serve;
use postern_store::database::{Database, Sqlite};
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::actors;
use crate::addresses::{Addresses, DevelopmentSockets};
use crate::data_folder::{self, DataFolder, url_safe};
use crate::database;
use crate::documents;
use crate::mail::{self, Mailbox};
use crate::pool::{self, ProvisionedPools};
use crate::samples::Samples;
use crate::signing_key::{KeyError, SigningKey};
use crate::social::{self, RegisteredClient, SocialProvider};
use crate::web::{SERVER_LIMITS, landing_page};

/// The variable with the secret of the admin routes of all three services.
pub const ADMIN_TOKEN: &str = "POSTERN_ADMIN_TOKEN";

/// A part: its name, and what runs until the shutdown.
pub type Part = (&'static str, BoxFuture<'static, ()>);

/// The pretended systems, before they serve.
#[derive(Debug)]
pub struct DevelopmentServices {
    identity_pool: pool::App,
    samples: Arc<Samples>,
    social: Arc<SocialProvider>,
    mailbox: Arc<Mailbox>,
    social_client: RegisteredClient,
    social_sealing_key: Secret,
    social_proof_key: Secret,
    mail_token_key: Secret,
    admin_token: Secret,
    addresses: Addresses,
}

// === impl DevelopmentServices ===

impl DevelopmentServices {
    /// Builds the services from the data folder, creating what is missing. Access tokens of users
    /// are valid for an hour by default.
    ///
    /// # Errors
    /// Exits with status 69 if a store is unavailable or a file cannot be written.
    pub async fn build(
        folder: &DataFolder,
        addresses: &Addresses,
        access_token_lifetime: Option<Duration>,
        clock: &Clock,
    ) -> Result<Self, Exit> {
        let key_path = folder.path().join("social-key.der");
        // Both generate RSA keys at the first start, so they run in parallel.
        let key = tokio::task::spawn_blocking(move || social_key(&key_path));
        let social_proof_key = folder.secret("social-proof.key", |bytes| STANDARD.encode(bytes))?;
        let sqlite = database::open(&folder.path().join("development.db")).await?;
        let mut pool_config = pool_config(sqlite.clone(), folder, addresses, &social_proof_key)?;
        if let Some(lifetime) = access_token_lifetime {
            pool_config.access_token_lifetime = lifetime;
        }
        let identity_pool = Box::pin(pool::App::build(pool_config, clock.clone()));
        let (identity_pool, key) = tokio::join!(identity_pool, key);
        let identity_pool = identity_pool?;
        let key = key.map_err(|_| Exit::unavailable("key generation panicked"))??;
        let client = RegisteredClient {
            id: "postern".to_owned(),
            secret: folder.secret("social-client.secret", url_safe)?,
            redirect_uris: vec![social_callback_url(addresses)],
        };
        let issuer = format!("http://{}", addresses.social);
        let social = SocialProvider::new(issuer, client.clone(), key, clock.clone());
        let verifier = verifier(identity_pool.provisioned(), clock)?;
        let mailbox = Mailbox::new(sqlite.clone(), clock.clone());
        let samples = Samples {
            verifier,
            sqlite,
            folder: folder.subfolder("documents")?,
            clock: clock.clone(),
        };
        Ok(Self {
            samples: Arc::new(samples),
            social: Arc::new(social),
            mailbox: Arc::new(mailbox),
            social_sealing_key: folder
                .secret("social-sealing.key", |bytes| STANDARD.encode(bytes))?,
            social_proof_key,
            mail_token_key: folder.secret("mail-token.key", |bytes| STANDARD.encode(bytes))?,
            admin_token: folder.secret("admin.token", url_safe)?,
            social_client: client,
            addresses: *addresses,
            identity_pool,
        })
    }

    /// Returns the mailbox of the mail catcher.
    #[must_use]
    pub fn mailbox(&self) -> Arc<Mailbox> {
        Arc::clone(&self.mailbox)
    }

    /// Returns the ids and secrets of the pools.
    #[must_use]
    pub fn provisioned(&self) -> &ProvisionedPools {
        self.identity_pool.provisioned()
    }

    /// Returns the environment variables for the service that signs in as `account`, or for one
    /// that has no account.
    #[must_use]
    pub fn variables(&self, account: Option<&str>) -> Vec<(&'static str, String)> {
        let mut variables = self.provisioned().variables(account);
        let mut set = |name, value: &str| variables.push((name, value.to_owned()));
        set("SOCIAL_OAUTH2_CLIENT_ID", &self.social_client.id);
        let sealing_key = self.social_sealing_key.expose();
        set("SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY", sealing_key);
        set(
            "SOCIAL_OAUTH2_CLIENT_SECRET",
            self.social_client.secret.expose(),
        );
        set(SOCIAL_PROOF_KEY, self.social_proof_key.expose());
        set("NOTIFY_TOKEN_KEY", self.mail_token_key.expose());
        set(ADMIN_TOKEN, self.admin_token.expose());
        variables
    }

    /// Returns the parts, which serve until `stop` is cancelled.
    #[must_use]
    pub fn parts(self, sockets: DevelopmentSockets, stop: &CancellationToken) -> Vec<Part> {
        let gateway = format!("http://{}", self.addresses.proxy);
        let mail = mail::router(Arc::clone(&self.mailbox), &gateway);
        let http = |socket, router| serve(socket, router, SERVER_LIMITS, stop.clone()).boxed();
        let samples = self.samples;
        let store = Database::Sqlite(samples.sqlite.clone());
        let pool = self.identity_pool.run(sockets.identity_pool, stop.clone());
        let pool = pool.then(|()| async move { store.close().await });
        let catcher = mail::serve(sockets.smtp, self.mailbox, stop.clone());
        vec![
            ("identity pool", pool.boxed()),
            (
                "verifier",
                Arc::clone(&samples.verifier).run(stop.clone()).boxed(),
            ),
            (
                "actor service",
                http(sockets.actor, actors::router(Arc::clone(&samples))),
            ),
            (
                "document service",
                http(sockets.document, documents::router(samples)),
            ),
            (
                "social provider",
                http(sockets.social, social::router(self.social)),
            ),
            ("mail page", http(sockets.mail, mail)),
            ("mail catcher", catcher.boxed()),
        ]
    }
}

fn pool_config(
    sqlite: Sqlite,
    folder: &DataFolder,
    addresses: &Addresses,
    social_proof_key: &Secret,
) -> Result<pool::Config, Exit> {
    let base = Url::parse(&format!("http://{}", addresses.identity_pool));
    let base = base.map_err(|error| Exit::usage(format!("identity pool: {error}")))?;
    let mut config = pool::Config::new(sqlite, folder.path(), base);
    let key = SocialProofKey::parse(social_proof_key.expose());
    let key = key.map_err(|error| Exit::unavailable(format!("social-proof.key {error}")))?;
    config.social_proof_key = Some(key);
    Ok(config)
}

fn social_key(path: &Path) -> Result<SigningKey, Exit> {
    let broken = |error: KeyError| Exit::unavailable(format!("{}: {error}", path.display()));
    let pkcs8 = match data_folder::read_optional(path)? {
        Some(bytes) => bytes,
        None => {
            let pkcs8 = SigningKey::generate().map_err(broken)?;
            data_folder::write_private(path, &pkcs8)?;
            pkcs8
        }
    };
    SigningKey::from_pkcs8(&pkcs8, "").map_err(broken)
}

/// Returns the redirect URI of the social sign-in.
#[must_use]
pub fn social_callback_url(addresses: &Addresses) -> String {
    format!("http://{}/auth/social/login/callback", addresses.proxy)
}

/// Returns the page that a social sign-in ends at.
#[must_use]
pub fn landing_page_url(addresses: &Addresses) -> String {
    format!("http://{}{}", addresses.mail, landing_page::PATH)
}

fn verifier(provisioned: &ProvisionedPools, clock: &Clock) -> Result<Arc<Verifier>, Exit> {
    let env: Env = provisioned.variables(None).into_iter().collect();
    let identity = config::parse("identity", "", |root| IdentityConfig::read(root, &env))?;
    let options = VerifierOptions {
        clock: clock.clone(),
        cache_bytes: 4 << 20,
        ..VerifierOptions::default()
    };
    Ok(Verifier::new(identity.issuers(), options))
}

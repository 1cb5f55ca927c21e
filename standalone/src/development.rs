//! The parts that stand in for what an operator would bring: identity pool, sample services, social
//! provider, mail catcher. They serve this machine only.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use postern_common::config::{self, Env};
use postern_common::database::{Database, Sqlite};
use postern_common::exit::Exit;
use postern_common::http::{BodyBudgets, Limits, serve};
use postern_common::identity::IdentityConfig;
use postern_common::token::{Verifier, VerifierOptions};
use postern_common::{Clock, Secret};
use postern_identity_pool::{self as pool, CodeDelivery, CodeMail, Hashing, Provisioned};
use tokio::sync::mpsc;
use url::Url;

use crate::folder::{Folder, url_safe};
use crate::mail::{self, Mailbox};
use crate::running::Stage;
use crate::sample::actor::ActorService;
use crate::sample::document::DocumentService;
use crate::sample::{actor, document};
use crate::social::{self, Client, Provider, SigningKey};
use crate::sockets::{Addresses, DevelopmentSockets};
use crate::{codes, landing, store};

/// Codes that wait to be delivered.
const CODES: usize = 256;

/// What the development parts accept.
const LIMITS: Limits = Limits {
    bodies: BodyBudgets::anonymous(16 << 20),
    body: 256 << 10,
    connections: 1024,
    head_timeout: Duration::from_secs(10),
    linger: Duration::ZERO,
    drain: Duration::from_millis(500),
};

/// Everything that is built and does not run yet.
#[derive(Debug)]
pub(crate) struct Development {
    identity_pool: pool::App,
    actor: Arc<ActorService>,
    document: Arc<DocumentService>,
    social: Arc<Provider>,
    verifier: Arc<Verifier>,
    mailbox: Arc<Mailbox>,
    codes: mpsc::Receiver<CodeMail>,
    sqlite: Sqlite,
    social_client: Client,
    social_sealing_key: Secret,
    mail_token_key: Secret,
    gateway: String,
}

// === impl Development ===

impl Development {
    /// Makes what is missing in the folder and opens what is there.
    pub(crate) async fn build(
        folder: &Folder,
        addresses: &Addresses,
        hashing: Hashing,
        clock: &Clock,
    ) -> Result<Self, Exit> {
        let (codes_in, codes) = mpsc::channel(CODES);
        let key_path = folder.path().join("social-key.der");
        // Both make RSA keys at the first start: side by side.
        let key = tokio::task::spawn_blocking(move || SigningKey::open(&key_path));
        let identity_pool = identity_pool(folder, addresses, hashing, codes_in, clock);
        let sqlite_path = folder.path().join("development.db");
        let (identity_pool, sqlite, key) =
            tokio::join!(Box::pin(identity_pool), store::open(&sqlite_path), key);
        let (identity_pool, sqlite) = (identity_pool?, sqlite?);
        let key = key.map_err(|_| Exit::unavailable("making a key panicked"))??;
        let client = social_client(folder, addresses)?;
        let issuer = format!("http://{}", addresses.social);
        let social = Provider::new(issuer, client.clone(), key, sqlite.clone(), clock.clone());
        let verifier = verifier(identity_pool.provisioned(), clock)?;
        let unusable = |error: std::io::Error| {
            Exit::unavailable(format!("{}: {error}", folder.path().display()))
        };
        let documents = folder.subfolder("documents")?;
        let document = DocumentService::new(
            Arc::clone(&verifier),
            sqlite.clone(),
            documents,
            clock.clone(),
        );
        Ok(Self {
            actor: ActorService::new(Arc::clone(&verifier), sqlite.clone(), clock.clone()),
            document: document.map_err(unusable)?,
            social: Arc::new(social),
            mailbox: Arc::new(
                Mailbox::open(&folder.subfolder("mail")?, clock.clone()).map_err(unusable)?,
            ),
            social_sealing_key: folder
                .secret("social-sealing.key", |bytes| STANDARD.encode(bytes))?,
            mail_token_key: folder.secret("mail-token.key", |bytes| STANDARD.encode(bytes))?,
            social_client: client,
            gateway: format!("http://{}", addresses.proxy),
            identity_pool,
            verifier,
            codes,
            sqlite,
        })
    }

    pub(crate) fn mailbox(&self) -> Arc<Mailbox> {
        Arc::clone(&self.mailbox)
    }

    /// Returns when the pools can sign: a first start makes their keys while the rest starts.
    pub(crate) fn keys_are_made(&self) -> impl Future<Output = Result<(), Exit>> + Send + 'static {
        self.identity_pool.keys_are_made()
    }

    /// Ids and secrets of the pools.
    pub(crate) fn provisioned(&self) -> &Provisioned {
        self.identity_pool.provisioned()
    }

    /// The variables of the interface for the service that signs in as `account`.
    pub(crate) fn variables(&self, account: &str) -> Vec<(&'static str, String)> {
        let mut variables = self.provisioned().variables(account);
        let secret = |secret: &Secret| secret.expose().to_owned();
        variables.push(("SOCIAL_OAUTH2_CLIENT_ID", self.social_client.id.clone()));
        variables.push((
            "SOCIAL_OAUTH2_CLIENT_SECRET",
            secret(&self.social_client.secret),
        ));
        variables.push((
            "SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY",
            secret(&self.social_sealing_key),
        ));
        variables.push(("NOTIFY_TOKEN_KEY", secret(&self.mail_token_key)));
        variables
    }

    /// Serves until the stage stops.
    pub(crate) fn run(self, sockets: DevelopmentSockets, stage: &mut Stage) {
        let stop = stage.shutdown();
        let listeners = pool::Listeners {
            public: sockets.identity_pool,
            admin: None,
        };
        stage.spawn(
            "identity pool",
            self.identity_pool.run(listeners, stop.clone()),
        );
        stage.spawn("verifier", Arc::clone(&self.verifier).run(stop.clone()));
        let actor = actor::router(self.actor);
        stage.spawn(
            "actor service",
            serve(sockets.actor, actor, LIMITS, stop.clone()),
        );
        let document = document::router(self.document);
        stage.spawn(
            "document service",
            serve(sockets.document, document, LIMITS, stop.clone()),
        );
        let social = social::router(self.social);
        stage.spawn(
            "social provider",
            serve(sockets.social, social, LIMITS, stop.clone()),
        );
        let mail = mail::router(Arc::clone(&self.mailbox), &self.gateway);
        stage.spawn("mail page", serve(sockets.mail, mail, LIMITS, stop.clone()));
        stage.spawn(
            "mail catcher",
            mail::serve(sockets.smtp, Arc::clone(&self.mailbox), stop.clone()),
        );
        stage.spawn(
            "codes",
            codes::deliver(self.codes, self.mailbox, stop.clone()),
        );
        let sqlite = self.sqlite;
        stage.spawn("development store", async move {
            stop.cancelled().await;
            Database::Sqlite(sqlite).close().await;
        });
    }
}

async fn identity_pool(
    folder: &Folder,
    addresses: &Addresses,
    hashing: Hashing,
    codes: mpsc::Sender<CodeMail>,
    clock: &Clock,
) -> Result<pool::App, Exit> {
    let base = Url::parse(&format!("http://{}", addresses.identity_pool));
    let base = base.map_err(|error| Exit::usage(format!("identity pool: {error}")))?;
    let mut config = pool::Config::new(folder.database("identity-pool.db"), folder.path(), base);
    config.code_delivery = CodeDelivery::Mail(codes);
    config.hashing = hashing;
    pool::App::build(config, clock.clone()).await
}

/// The authentication upstream's client at the social provider.
fn social_client(folder: &Folder, addresses: &Addresses) -> Result<Client, Exit> {
    Ok(Client {
        id: "postern".to_owned(),
        secret: folder.secret("social-client.secret", url_safe)?,
        redirect_uris: vec![callback(addresses)],
    })
}

/// Where the social provider sends the browser back to.
pub(crate) fn callback(addresses: &Addresses) -> String {
    format!("http://{}/auth/social/login/callback", addresses.proxy)
}

/// Where the authentication upstream sends the browser in the end.
pub(crate) fn landing_page(addresses: &Addresses) -> String {
    format!("http://{}{}", addresses.mail, landing::PATH)
}

/// What the sample services verify tokens with.
fn verifier(provisioned: &Provisioned, clock: &Clock) -> Result<Arc<Verifier>, Exit> {
    let env: Env = provisioned.variables("").into_iter().collect();
    let identity = config::parse("identity", "", |root| IdentityConfig::read(root, &env))?;
    let options = VerifierOptions {
        clock: clock.clone(),
        cache_bytes: 4 << 20,
        ..VerifierOptions::default()
    };
    Ok(Verifier::new(identity.issuers(), options))
}

//! Settings of social sign-in (`[social]`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use postern_core::Secret;
use postern_core::config::{Env, secret};
use postern_core::decode::{Field, Object};
use postern_core::network::is_https_or_loopback;
use postern_core::settings;
use url::Url;

use super::read_key_ring;
use crate::crypto::KeyRing;

/// Social sign-in with OpenID Connect providers; Google by default.
#[derive(Debug)]
pub struct SocialConfig {
    /// The providers; names and issuers are unique. The first one is used if a sign-in names none: that of
    /// `SOCIAL_OAUTH2_CLIENT_ID`, if it is set.
    pub providers: Vec<Arc<SocialProviderConfig>>,
    /// The page of the UI that receives the temporary token. Required; requests cannot change it.
    pub ui: Url,
    /// The delivery of the token to the page. Default [`TokenDelivery::Fragment`].
    pub delivery: TokenDelivery,
    /// Whether a sign-in must start with a `code_challenge`, which binds the temporary token to the
    /// browser that started it. Without it, a victim who opens the callback URL of an attacker's
    /// sign-in is signed in as the attacker (login CSRF). Default `false`, because the specified
    /// interface has no parameter. Enable it if every UI sends one.
    pub require_code_challenge: bool,
    /// Timeout of one call to a provider. Default 5 s.
    pub deadline: Duration,
    /// Keys that seal the providers' refresh tokens: `SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY`, newest
    /// first, separated by commas.
    pub(crate) key_ring: KeyRing,
}

settings! {
    /// A provider: that of `[social]` and the two variables, or one of `[[social.provider]]`.
    #[derive(Debug)]
    pub struct SocialProviderConfig(table, env: &Env, redirect_uri: Option<&Url>) {
        /// Name in requests and responses.
        pub name: String => |field| field.text(1..=64),
        /// Issuer of its ID tokens, compared byte for byte.
        pub issuer: String => issuer,
        /// Client id at the provider.
        ///
        /// That of `[social]`: `SOCIAL_OAUTH2_CLIENT_ID`.
        pub client_id: String => |field| field.text(1..=1024),
        /// Client secret.
        ///
        /// That of `[social]`: `SOCIAL_OAUTH2_CLIENT_SECRET`.
        pub client_secret as client_secret_env: Secret => |field| secret(field, env),
        /// The settings with defaults.
        pub settings: SocialProviderSettings =
            (SocialProviderSettings::read(table, issuer.as_deref(), redirect_uri)),
    }
}

settings! {
    /// The settings of a provider that have defaults. `redirect_uri` is that of `[social]`.
    #[derive(Debug)]
    pub struct SocialProviderSettings(table, issuer: Option<&str>, redirect_uri: Option<&Url>) {
        /// Endpoints of the provider.
        pub authorization_endpoint: Option<Url> = None ("by discovery") => secure_url,
        /// Endpoints of the provider.
        pub token_endpoint: Option<Url> = None ("by discovery") => secure_url,
        /// Endpoints of the provider.
        pub jwks_url: Option<Url> = None ("by discovery") => secure_url,
        /// How the client proves its secret.
        pub client_authentication as token_endpoint_auth_method: Option<ClientAuthentication> =
            None ("by discovery, Basic first") => |field| field.one_of(&METHODS),
        /// Require a nonce in ID tokens; a wrong one is rejected always.
        pub nonce: bool = true => |field| field.boolean(),
        /// Send a PKCE challenge.
        pub pkce: bool = true => |field| field.boolean(),
        /// Callback as registered at the provider; a parameter `provider` must be its name.
        ///
        /// `/auth/social/login/callback` of the gateway.
        pub redirect_uri: Url = { redirect_uri.cloned().or_else(default_redirect) }
            ("that of `social`; there `http://127.0.0.1:8500/auth/social/login/callback`")
            => secure_url,
        /// Requested scopes.
        pub scopes: Vec<String> = ["openid", "email", "profile"] => texts,
        /// Further parameters of the authorization URL.
        ///
        /// Without those two, Google issues no refresh token.
        pub parameters: BTreeMap<String, String> = { Some(default_parameters(issuer)) }
            ("Google: `access_type=offline`, `prompt=consent`; else none")
            => |field| field.object(|parameters| {
                let read = |name: &str, value: Field<'_>| Some((name.to_owned(), value.text(0..=255)?));
                Some(parameters.entries(read).into_iter().collect())
            }),
        /// [Domains](../manual/sign-in.md#social-identities-and-accounts) whose mailboxes the provider
        /// itself assigns.
        pub authoritative_domains: Vec<String> = { Some(default_authoritative_domains(issuer)) }
            ("Google: `gmail.com`, `googlemail.com`; else none")
            => texts,
    }
}

const METHODS: [(&str, ClientAuthentication); 2] = [
    ("client_secret_basic", ClientAuthentication::Basic),
    ("client_secret_post", ClientAuthentication::Post),
];

/// The authentication of the client at the token endpoint (RFC 6749 section 2.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuthentication {
    /// `client_secret_basic`: the field `Authorization`.
    Basic,
    /// `client_secret_post`: the body.
    Post,
}

/// The delivery of the temporary token to the UI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenDelivery {
    /// A redirect (`302`) to the page with `#temporaryToken=…`. Browsers send fragments neither to
    /// servers nor in `Referer`.
    Fragment,
    /// A page (`200`) with a form that a script submits to the UI.
    FormPost,
}

const CALL_DEADLINE: Duration = Duration::from_secs(5);
const GOOGLE_ISSUER: &str = "https://accounts.google.com";
/// Domains whose addresses Google assigns.
const GOOGLE_DOMAINS: [&str; 2] = ["gmail.com", "googlemail.com"];

// === impl SocialConfig ===

impl SocialConfig {
    /// Reads `[social]`. Returns `Some(None)` if social sign-in is disabled, and `None` if it is
    /// enabled and invalid.
    pub(super) fn read(root: &Object<'_>, table: &Object<'_>, env: &Env) -> Option<Option<Self>> {
        let table = SocialTable::read(table, env)?;
        let client_id = env.get("SOCIAL_OAUTH2_CLIENT_ID");
        if client_id.is_none() && table.further.is_empty() {
            return Some(None);
        }
        let client_secret = env.optional_secret(root, "SOCIAL_OAUTH2_CLIENT_SECRET")?;
        let key = env.optional_secret(root, "SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY")?;
        for (setting, is_set) in [
            (
                "SOCIAL_OAUTH2_CLIENT_SECRET",
                client_secret.is_some() || client_id.is_none(),
            ),
            ("SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY", key.is_some()),
            ("social.ui", table.ui.is_some()),
        ] {
            if !is_set {
                let detail = format!("{setting} is required for social sign-in");
                root.fail("missing_field", detail);
            }
        }
        let key_ring =
            key.and_then(|key| read_key_ring(root, "SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY", &key));
        let mut providers = Vec::new();
        if let Some(client_id) = client_id {
            providers.push(Arc::new(SocialProviderConfig {
                name: table.name,
                issuer: table.issuer,
                client_id: client_id.to_owned(),
                client_secret: client_secret?,
                settings: table.settings,
            }));
        }
        for provider in table.further.into_iter().map(Arc::new) {
            let is_same = |other: &&Arc<SocialProviderConfig>| {
                other.name == provider.name || other.issuer == provider.issuer
            };
            if let Some(other) = providers.iter().find(is_same) {
                let detail = format!(
                    "{} has the name or the issuer of {}",
                    provider.name, other.name
                );
                root.fail_at("social.provider", "duplicate_provider", detail);
            }
            providers.push(provider);
        }
        Some(Some(Self {
            providers,
            ui: table.ui?,
            delivery: table.delivery,
            require_code_challenge: table.require_code_challenge,
            deadline: CALL_DEADLINE,
            key_ring: key_ring?,
        }))
    }

    pub(crate) fn by_issuer(&self, issuer: &str) -> Option<&Arc<SocialProviderConfig>> {
        self.providers.iter().find(|it| it.issuer == issuer)
    }

    /// Returns warnings about unusual settings of providers.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.providers.iter().flat_map(|it| it.warnings()).collect()
    }
}

// === impl SocialProviderConfig ===

impl SocialProviderConfig {
    /// Returns whether this is Google, which alone defines the claim `hd` as a domain that it hosts.
    pub(crate) fn is_google(&self) -> bool {
        self.issuer == GOOGLE_ISSUER
    }

    fn warnings(&self) -> Vec<String> {
        let (mut warnings, settings) = (Vec::new(), &self.settings);
        if !settings.nonce && !settings.pkce {
            warnings.push(format!(
                "provider {} has neither nonce nor pkce: who obtains a code of another person can use it (RFC 9700 section 4.5)",
                self.name
            ));
        }
        if self.is_google() {
            return warnings;
        }
        // A sign-in with an authoritative address deletes an account whose address was never
        // verified.
        for domain in &settings.authoritative_domains {
            if GOOGLE_DOMAINS
                .iter()
                .any(|google| google.eq_ignore_ascii_case(domain))
            {
                warnings.push(format!(
                    "social.authoritative_domains contains {domain}, whose addresses are assigned by Google, not by {}",
                    self.issuer
                ));
            }
        }
        warnings
    }
}

settings! {
    /// The table `[social]`.
    struct SocialTable(table, env: &Env) {
        /// Name in requests and responses.
        name: String = "google" => |field| field.text(1..=64),
        /// Issuer of its ID tokens, compared byte for byte.
        issuer: String = GOOGLE_ISSUER => issuer,
        settings: SocialProviderSettings =
            (SocialProviderSettings::read(table, issuer.as_deref(), None)),
        /// Page that receives the temporary token.
        ui: Option<Url> = None ("") => secure_url,
        /// How it receives it.
        delivery: TokenDelivery = "fragment" => |field| field.one_of(&DELIVERIES),
        /// Require `code_challenge` (S256).
        require_code_challenge: bool = false => |field| field.boolean(),
        /// Further providers, with name and issuer of their own.
        further as provider: Vec<SocialProviderConfig> = [] => |field| {
            let redirect_uri = settings.as_ref().map(|settings| &settings.redirect_uri);
            field.array(|item| {
                item.object(|table| SocialProviderConfig::read(table, env, redirect_uri))
            })
        },
    }
}

const DELIVERIES: [(&str, TokenDelivery); 2] = [
    ("fragment", TokenDelivery::Fragment),
    ("form_post", TokenDelivery::FormPost),
];

fn texts(field: Field<'_>) -> Option<Vec<String>> {
    field.array(|item| item.text(1..=255))
}

fn issuer(field: Field<'_>) -> Option<String> {
    secure_url(field.typed("URL")).and_then(|_| field.text(1..=2048))
}

/// Reads an HTTPS URL, or an HTTP URL of a loopback address: it will receive codes and tokens.
fn secure_url(field: Field<'_>) -> Option<Url> {
    let url = field.url()?;
    if is_https_or_loopback(&url) {
        return Some(url);
    }
    field.reject(
        "insecure_url",
        "must be an https URL, unless its host is a loopback address",
    )
}

fn default_redirect() -> Option<Url> {
    Url::parse("http://127.0.0.1:8500/auth/social/login/callback").ok()
}

fn default_authoritative_domains(issuer: Option<&str>) -> Vec<String> {
    let is_google = issuer == Some(GOOGLE_ISSUER);
    let domains = if is_google { &GOOGLE_DOMAINS[..] } else { &[] };
    domains.iter().map(|domain| (*domain).to_owned()).collect()
}

fn default_parameters(issuer: Option<&str>) -> BTreeMap<String, String> {
    let google = [("access_type", "offline"), ("prompt", "consent")];
    let pairs = if issuer == Some(GOOGLE_ISSUER) {
        &google[..]
    } else {
        &[]
    };
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

use std::collections::BTreeMap;
use std::time::Duration;

use postern_common::Secret;
use postern_common::config::Env;
use postern_common::decode::{Field, Object};
use url::{Host, Url};

use super::read_ring;
use crate::seal::KeyRing;

/// Social sign-in with one provider, which is Google unless the file says otherwise.
#[derive(Debug)]
pub struct SocialConfig {
    /// What the provider is called in answers. Default `google`.
    pub provider: String,
    /// Whose ID tokens are accepted, to the byte. Default `https://accounts.google.com`.
    pub issuer: String,
    /// Our client there: `SOCIAL_OAUTH2_CLIENT_ID`.
    pub client_id: String,
    /// Its secret: `SOCIAL_OAUTH2_CLIENT_SECRET`.
    pub client_secret: Secret,
    /// Where the browser is sent to sign in; found by discovery if absent.
    pub authorization_endpoint: Option<Url>,
    /// Where the code is exchanged; found by discovery if absent.
    pub token_endpoint: Option<Url>,
    /// Where the provider's keys are; found by discovery if absent.
    pub jwks_url: Option<Url>,
    /// Where the provider sends the browser back: the gateway's own `/auth/social/login/callback`,
    /// as it is registered at the provider. Default
    /// `http://127.0.0.1:8500/auth/social/login/callback`.
    pub redirect_uri: Url,
    /// What is asked for. Default `openid email profile`.
    pub scopes: Vec<String>,
    /// Added to the authorization URL. Default for Google: `access_type=offline`, `prompt=consent`,
    /// without which it gives no refresh token.
    pub parameters: BTreeMap<String, String>,
    /// The page of the UI that gets the temporary token. Required: a target comes from here and
    /// nowhere else.
    pub ui: Url,
    /// How the page gets it. Default [`Delivery::Fragment`].
    pub delivery: Delivery,
    /// Whether a sign-in must begin with a `code_challenge`, which binds the temporary token to the
    /// browser that began. Without it, somebody who is made to open the callback of a stranger's
    /// sign-in is signed in as that stranger. Default `false`: the interface has the call take
    /// nothing. Switch it on where every UI sends one.
    pub require_code_challenge: bool,
    /// How long one call to the provider may take. Default 5 s: it is on another network, and a
    /// person waits.
    pub deadline: Duration,
    /// Domains whose addresses the provider itself hands out, so that its word about them is final.
    /// Default for Google: `gmail.com`, `googlemail.com`; for everybody else none.
    pub authoritative_domains: Vec<String>,
    /// Whether a `hd` claim (a Google Workspace domain) makes the provider's word final. Default
    /// `true` for Google, which alone defines the claim; else `false`.
    pub trust_hosted_domain: bool,
    /// Seals the provider's refresh tokens: `SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY`, the newest
    /// first, older ones behind commas.
    pub(crate) ring: KeyRing,
}

/// How the UI gets the temporary token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// `302` to the page with `#temporaryToken=…`: a fragment reaches no server, log or Referer.
    #[default]
    Fragment,
    /// `200` with a form that posts itself to the page.
    FormPost,
}

const GOOGLE: &str = "https://accounts.google.com";
/// Whose addresses Google hands out itself.
const GOOGLE_DOMAINS: [&str; 2] = ["gmail.com", "googlemail.com"];

// === impl SocialConfig ===

impl SocialConfig {
    /// Reads `[social]`. `Some(None)` where social sign-in is off; `None` where it is on and wrong.
    pub(super) fn read(root: &Object<'_>, env: &Env) -> Option<Option<Self>> {
        let Some(client_id) = env.get("SOCIAL_OAUTH2_CLIENT_ID") else {
            root.section("social", |table| Some(SocialTable::read(table)));
            return Some(None);
        };
        let client_secret = env.secret("SOCIAL_OAUTH2_CLIENT_SECRET");
        let key = env.get("SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY");
        for (variable, is_there) in [
            ("SOCIAL_OAUTH2_CLIENT_SECRET", client_secret.is_some()),
            ("SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY", key.is_some()),
        ] {
            if !is_there {
                let detail = format!("{variable} is required where SOCIAL_OAUTH2_CLIENT_ID is set");
                root.fail("missing_field", detail);
            }
        }
        let ring = key.and_then(|key| read_ring(root, "SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY", key));
        let table = root
            .section("social", |table| Some(SocialTable::read(table)))
            .unwrap_or_default();
        if table.ui.is_none() {
            root.fail(
                "missing_field",
                "social.ui is required where SOCIAL_OAUTH2_CLIENT_ID is set",
            );
        }
        let issuer = table.issuer.unwrap_or_else(|| GOOGLE.to_owned());
        Some(Some(Self {
            provider: table.provider.unwrap_or_else(|| "google".to_owned()),
            client_id: client_id.to_owned(),
            client_secret: client_secret?,
            authorization_endpoint: table.authorization_endpoint,
            token_endpoint: table.token_endpoint,
            jwks_url: table.jwks_url,
            redirect_uri: table.redirect_uri.unwrap_or_else(default_redirect),
            scopes: table
                .scopes
                .unwrap_or_else(|| ["openid", "email", "profile"].map(str::to_owned).into()),
            parameters: table
                .parameters
                .unwrap_or_else(|| default_parameters(&issuer)),
            ui: table.ui?,
            delivery: table.delivery,
            require_code_challenge: table.require_code_challenge,
            deadline: table.deadline.unwrap_or(Duration::from_secs(5)),
            authoritative_domains: table
                .authoritative_domains
                .unwrap_or_else(|| default_authoritative_domains(&issuer)),
            trust_hosted_domain: table.trust_hosted_domain.unwrap_or(issuer == GOOGLE),
            issuer,
            ring: ring?,
        }))
    }

    /// What is unusual about whose word is final: such a word deletes accounts whose address was
    /// never verified.
    pub(crate) fn trust_warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.issuer == GOOGLE {
            return warnings;
        }
        for domain in &self.authoritative_domains {
            if GOOGLE_DOMAINS
                .iter()
                .any(|google| google.eq_ignore_ascii_case(domain))
            {
                warnings.push(format!(
                    "social.authoritative_domains has {domain}, whose addresses Google hands out, and not {}",
                    self.issuer
                ));
            }
        }
        if self.trust_hosted_domain {
            warnings.push(format!(
                "social.trust_hosted_domain is on: {} can claim any domain with hd, which Google alone defines",
                self.issuer
            ));
        }
        warnings
    }
}

/// The table as it is written, every key optional.
#[derive(Default)]
struct SocialTable {
    provider: Option<String>,
    issuer: Option<String>,
    authorization_endpoint: Option<Url>,
    token_endpoint: Option<Url>,
    jwks_url: Option<Url>,
    redirect_uri: Option<Url>,
    scopes: Option<Vec<String>>,
    parameters: Option<BTreeMap<String, String>>,
    ui: Option<Url>,
    delivery: Delivery,
    require_code_challenge: bool,
    deadline: Option<Duration>,
    authoritative_domains: Option<Vec<String>>,
    trust_hosted_domain: Option<bool>,
}

// === impl SocialTable ===

impl SocialTable {
    fn read(table: &Object<'_>) -> Self {
        let texts = |name| table.optional(name, |field| field.array(|item| item.text(1..=255)));
        let parameters = table.section("parameters", |parameters| {
            Some(parameters.entries(|name, value| Some((name.to_owned(), value.text(0..=255)?))))
        });
        let deliveries = [
            ("fragment", Delivery::Fragment),
            ("form_post", Delivery::FormPost),
        ];
        Self {
            provider: table.optional("provider", |field| field.text(1..=64)),
            issuer: table.optional("issuer", |field| {
                secure_url(field).and_then(|_| field.text(1..=2048))
            }),
            authorization_endpoint: table.optional("authorization_endpoint", secure_url),
            token_endpoint: table.optional("token_endpoint", secure_url),
            jwks_url: table.optional("jwks_url", secure_url),
            redirect_uri: table.optional("redirect_uri", secure_url),
            scopes: texts("scopes"),
            parameters: parameters.map(|entries| entries.into_iter().collect()),
            ui: table.optional("ui", secure_url),
            delivery: table.or("delivery", Delivery::Fragment, |field| {
                field.one_of(&deliveries)
            }),
            require_code_challenge: table
                .or("require_code_challenge", false, |field| field.boolean()),
            deadline: table.optional("deadline", |field| field.duration()),
            authoritative_domains: texts("authoritative_domains"),
            trust_hosted_domain: table.optional("trust_hosted_domain", |field| field.boolean()),
        }
    }
}

/// HTTPS, or HTTP on a loopback address: codes and tokens travel there.
fn secure_url(field: Field<'_>) -> Option<Url> {
    let url = field.url()?;
    let is_loopback = match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    if url.scheme() == "https" || is_loopback {
        return Some(url);
    }
    field.reject(
        "insecure_url",
        "must be an https URL, unless it is on this machine",
    )
}

fn default_redirect() -> Url {
    Url::parse("http://127.0.0.1:8500/auth/social/login/callback")
        .expect("a constant that is a URL")
}

fn default_authoritative_domains(issuer: &str) -> Vec<String> {
    let domains = if issuer == GOOGLE {
        &GOOGLE_DOMAINS[..]
    } else {
        &[]
    };
    domains.iter().map(|domain| (*domain).to_owned()).collect()
}

fn default_parameters(issuer: &str) -> BTreeMap<String, String> {
    let google = [("access_type", "offline"), ("prompt", "consent")];
    let pairs = if issuer == GOOGLE { &google[..] } else { &[] };
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

//! The `[[provider]]` tables of the configuration.

mod api;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use postern_core::config::{Env, secret};
use postern_core::decode::{Field, Object};
use postern_core::email::{EmailAddress, MAX_LOCAL_PART_BYTES};
use url::Url;

use crate::config::webhooks::callback;
use crate::delivery::mail_token::{MailTokens, TOKEN_LENGTH};
use crate::delivery::pool::{ProviderConfig, ProviderSettings};
use crate::delivery::provider::{SmtpConfig, SmtpTimeouts, TlsMode};
use crate::notification::Channel;
use crate::templates::TemplateName;

// === impl ProviderConfig ===

impl ProviderConfig {
    pub(super) fn read(
        object: &Object<'_>,
        env: &Env,
        public_url: Option<&Url>,
        tokens: Option<&MailTokens>,
    ) -> Option<Self> {
        let name = object.required("name", name);
        let channel = object.required("channel", |field| field.one_of(Channel::NAMES));
        let weight = object.or("weight", 1, |field| field.integer(1..=1000));
        let concurrency = object.or("concurrency", 64, |field| field.integer(1..=10_000));
        let rate = object.optional("rate", |field| field.integer(1..=1_000_000));
        let kind = object.required("kind", |field| field.one_of(PROVIDER_KINDS));
        if let (Some((word, Some(served))), Some(channel)) = (kind, channel)
            && served != channel
        {
            let served = served.as_str();
            let detail = format!("kind `{word}` carries the channel `{served}`");
            object.fail("kind_mismatch", detail);
        }
        let links = LinkConfig { public_url, tokens };
        let provider = match kind?.0 {
            "smtp" => {
                let smtp = read_smtp(object, env, concurrency, links);
                smtp.map(Box::new).map(ProviderSettings::Smtp)
            }
            "twilio" => api::read_twilio(object, env, public_url).map(ProviderSettings::Twilio),
            "http" => api::read_http(object, env).map(ProviderSettings::Http),
            "fcm" => api::read_fcm(object).map(ProviderSettings::Fcm),
            "web-push" => api::read_web_push(object, env).map(ProviderSettings::WebPush),
            "file" => object
                .required("folder", |field| field.text(1..=1024))
                .map(PathBuf::from)
                .map(ProviderSettings::File),
            _ => Some(ProviderSettings::Null),
        };
        Some(Self {
            name: name?,
            channel: channel?,
            weight,
            concurrency,
            rate,
            provider: provider?,
        })
    }
}

/// The service's public URL and the keys for the links in e-mail.
#[derive(Clone, Copy)]
struct LinkConfig<'a> {
    public_url: Option<&'a Url>,
    tokens: Option<&'a MailTokens>,
}

/// A kind of provider with the only channel that it serves, or `None` if it serves any.
type ProviderKind = (&'static str, Option<Channel>);

const PROVIDER_KINDS: &[(&str, ProviderKind)] = &[
    ("smtp", ("smtp", Some(Channel::Email))),
    ("twilio", ("twilio", Some(Channel::Sms))),
    ("http", ("http", None)),
    ("fcm", ("fcm", Some(Channel::Push))),
    ("web-push", ("web-push", Some(Channel::Push))),
    ("file", ("file", None)),
    ("null", ("null", None)),
];

fn name(field: Field<'_>) -> Option<String> {
    let text = field.text(1..=32)?;
    let is_valid = TemplateName::parse(&text).is_some();
    let name = is_valid.then_some(text);
    name.or_else(|| field.fail("invalid_format", "must be of a-z, 0-9, - and _"))
}

pub(super) fn check_unique_names(root: &Object<'_>, providers: &[ProviderConfig]) {
    let mut names = BTreeSet::new();
    for pooled in providers
        .iter()
        .filter(|pooled| !names.insert(pooled.name.as_str()))
    {
        root.fail(
            "duplicate_provider",
            format!("two providers have the name `{}`", pooled.name),
        );
    }
}

/// Returns the beginning of links to unsubscribe: only https is allowed (RFC 8058 section 3.1).
fn unsubscribe_link(public_url: Option<&Url>) -> Option<String> {
    let public_url = public_url.filter(|url| url.scheme() == "https")?;
    Some(format!(
        "{}?token=",
        callback(public_url, "unsubscriptions")
    ))
}

fn read_smtp(
    object: &Object<'_>,
    env: &Env,
    connections: usize,
    LinkConfig { public_url, tokens }: LinkConfig<'_>,
) -> Option<SmtpConfig> {
    let host = object.required("host", |field| field.text(1..=253));
    let modes = [
        ("starttls", TlsMode::StartTls),
        ("tls", TlsMode::Tls),
        ("none", TlsMode::None),
    ];
    let tls = object.or("tls", TlsMode::StartTls, |field| {
        let mode = field.one_of(&modes)?;
        if mode == TlsMode::None && !host.as_deref().is_some_and(is_loopback) {
            return field.fail(
                "not_allowed",
                "`none` is allowed only where host is a loopback address",
            );
        }
        Some(mode)
    });
    let port = object.or(
        "port",
        if tls == TlsMode::Tls { 465 } else { 587 },
        |field| field.integer(1..=65_535),
    );
    let ca_pem = object.optional("ca_file", |field| {
        let path = field.text(1..=1024)?;
        std::fs::read(&path)
            .ok()
            .or_else(|| field.fail("unreadable", format!("cannot read {path}")))
    });
    let from = object.required("from", EmailAddress::read);
    let return_path = object.optional("return_path", return_path);
    let from_name = object.or("from_name", String::new(), |field| {
        let name = field.text(0..=128)?;
        if name.contains("=?") {
            return field.fail("invalid_format", "must be the name itself, not encoded");
        }
        Some(name)
    });
    let ehlo_name = object.optional("hello", |field| field.text(1..=253));
    let credentials = object
        .optional("username", |field| field.text(1..=256))
        .map(|user| (user, secret(object, env, "password_env")));
    let unsubscribe = unsubscribe_link(public_url);
    let credentials = match credentials {
        Some((user, password)) => Some((user, password?)),
        None => None,
    };
    let from = from?;
    Some(SmtpConfig {
        host: host?,
        port,
        tls,
        ca_pem,
        credentials,
        ehlo_name: ehlo_name.unwrap_or_else(|| from.parts().1.to_owned()),
        return_path,
        tokens: tokens.cloned(),
        from: (from, from_name),
        connections,
        unsubscribe,
        timeouts: SmtpTimeouts::default(),
    })
}

/// Reads an address whose local part leaves room for `+` and a token.
fn return_path(field: Field<'_>) -> Option<EmailAddress> {
    let address = EmailAddress::read(field)?;
    let max = MAX_LOCAL_PART_BYTES - 1 - TOKEN_LENGTH;
    if address.parts().0.len() > max {
        return field.fail(
            "too_long",
            format!("must have at most {max} bytes before the @: a token follows"),
        );
    }
    Some(address)
}

fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host
            .trim_matches(['[', ']'])
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

//! The `[[provider]]` tables of the configuration.

mod api;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use postern_core::Secret;
use postern_core::config::{Env, secret};
use postern_core::decode::{Field, Object};
use postern_core::email::{EmailAddress, MAX_LOCAL_PART_BYTES};
use postern_core::settings;
use url::Url;

use crate::config::webhooks::callback;
use crate::delivery::mail_token::{MailTokens, TOKEN_LENGTH};
use crate::delivery::pool::{ProviderConfig, ProviderDescription, ProviderSettings};
use crate::delivery::provider::{SmtpConfig, SmtpTimeouts, TlsMode};
use crate::notification::Channel;
use crate::templates::TemplateName;

settings! {
    /// Reads a `[[provider]]` table.
    fn read_provider(object, env: &Env, links: LinkConfig<'_>) -> ProviderConfig {
        /// Name in events and metrics.
        name => name,
        /// Channel that it serves.
        channel => |field| field.one_of(Channel::NAMES),
        /// Implementation; keys of one kind only begin with it.
        kind => |field| read_kind(object, field, channel),
        /// Share among the providers of the channel.
        weight = 1 => |field| field.integer(1..=1000),
        /// Concurrent calls.
        concurrency = 64 => |field| field.integer(1..=10_000),
        /// Limit over all replicas, which take turns.
        rate = None => |field| field.typed("calls per second").integer(1..=1_000_000),
        settings = (read_settings(kind?, object, env, concurrency?, links)),
    } => ProviderConfig {
        description: ProviderDescription { name, channel, kind: kind.0, weight, concurrency, rate },
        settings,
    }
}

settings! {
    fn read_file(object) -> PathBuf {
        /// file: folder in which messages are written.
        folder => |field| field.path(),
    } => folder
}

settings! {
    fn read_smtp(object, env: &Env, connections: usize, links: LinkConfig<'_>) -> SmtpConfig {
        /// smtp: mail server.
        host => |field| field.text(1..=253),
        /// smtp; `none` on loopback only.
        tls = "starttls" => |field| read_tls(field, host.as_deref()),
        /// smtp.
        port = { Some(if tls == Some(TlsMode::Tls) { 465 } else { 587 }) } ("`587`, with `tls` `465`")
            => |field| field.integer(1..=65_535),
        /// smtp: certificate authorities, PEM.
        ca_pem as ca_file = None ("built-in root certificates") => |field| {
            let path = field.typed("path").text(1..=1024)?;
            let contents = std::fs::read(&path).ok();
            contents.or_else(|| field.fail("unreadable", format!("cannot read {path}")))
        },
        /// smtp: sender address.
        from => EmailAddress::read,
        /// smtp: address for delivery reports; a token is added.
        return_path = None ("`from`") => return_path,
        /// smtp: sender name.
        from_name = "" => |field| {
            let name = field.text(0..=128)?;
            if name.contains("=?") {
                return field.fail("invalid_format", "must be the name itself, not encoded");
            }
            Some(name)
        },
        /// smtp: name in EHLO.
        ehlo_name as hello = { Some(from.as_ref()?.parts().1.to_owned()) } ("domain of `from`")
            => |field| field.text(1..=253),
        /// smtp.
        username = None => |field| field.text(1..=256),
        password = (match username.as_ref()? {
            Some(_) => read_password(object, env).map(Some),
            None => Some(None),
        }),
    } => SmtpConfig {
        host,
        port,
        tls,
        ca_pem,
        credentials: username.zip(password),
        ehlo_name,
        return_path,
        tokens: links.tokens.cloned(),
        from: (from, from_name),
        connections,
        unsubscribe: unsubscribe_link(links.public_url),
        timeouts: SmtpTimeouts::default(),
    }
}

settings! {
    fn read_password(object, env: &Env) -> Secret {
        /// smtp: password; required with `username`.
        password as password_env => |field| secret(field, env),
    } => password
}

/// Reads the `[[provider]]` tables, whose names must be unique.
pub(super) fn read(
    root: &Object<'_>,
    field: Field<'_>,
    env: &Env,
    links: LinkConfig<'_>,
) -> Option<Vec<ProviderConfig>> {
    let read = |item: Field<'_>| item.object(|object| read_provider(object, env, links));
    let providers = field.array(read)?;
    let mut names = BTreeSet::new();
    for ProviderConfig { description, .. } in &providers {
        if !names.insert(&description.name) {
            let detail = format!("two providers have the name `{}`", description.name);
            root.fail("duplicate_provider", detail);
        }
    }
    Some(providers)
}

fn read_settings(
    (kind, _): ProviderKind,
    object: &Object<'_>,
    env: &Env,
    concurrency: usize,
    links: LinkConfig<'_>,
) -> Option<ProviderSettings> {
    Some(match kind {
        "smtp" => ProviderSettings::Smtp(read_smtp(object, env, concurrency, links)?.into()),
        "twilio" => ProviderSettings::Twilio(api::read_twilio(object, env, links.public_url)?),
        "http" => ProviderSettings::Http(api::read_http(object, env)?),
        "fcm" => ProviderSettings::Fcm(api::read_fcm(object)?),
        "web-push" => ProviderSettings::WebPush(api::read_web_push(object, env)?),
        "file" => ProviderSettings::File(read_file(object)?),
        _ => ProviderSettings::Null,
    })
}

/// The service's public URL and the keys for the links in e-mail.
#[derive(Clone, Copy)]
pub(super) struct LinkConfig<'a> {
    pub(super) public_url: Option<&'a Url>,
    pub(super) tokens: Option<&'a MailTokens>,
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

fn read_kind(
    object: &Object<'_>,
    field: Field<'_>,
    channel: Option<Channel>,
) -> Option<ProviderKind> {
    let kind = field.one_of(PROVIDER_KINDS)?;
    if let ((word, Some(served)), Some(channel)) = (kind, channel)
        && served != channel
    {
        let served = served.as_str();
        let detail = format!("kind `{word}` carries the channel `{served}`");
        object.fail("kind_mismatch", detail);
    }
    Some(kind)
}

fn name(field: Field<'_>) -> Option<String> {
    let text = field.typed("1 to 32 of `a-z0-9-_`").text(1..=32)?;
    let is_valid = TemplateName::parse(&text).is_some();
    let name = is_valid.then_some(text);
    name.or_else(|| field.fail("invalid_format", "must be of a-z, 0-9, - and _"))
}

/// Returns the beginning of links to unsubscribe: only https is allowed (RFC 8058 section 3.1).
fn unsubscribe_link(public_url: Option<&Url>) -> Option<String> {
    let public_url = public_url.filter(|url| url.scheme() == "https")?;
    let link = callback(public_url, "unsubscriptions");
    Some(format!("{link}?token="))
}

fn read_tls(field: Field<'_>, host: Option<&str>) -> Option<TlsMode> {
    let modes = [
        ("starttls", TlsMode::StartTls),
        ("tls", TlsMode::Tls),
        ("none", TlsMode::None),
    ];
    let mode = field.one_of(&modes)?;
    if mode == TlsMode::None && !host.is_some_and(is_loopback) {
        let detail = "`none` is allowed only where host is a loopback address";
        return field.fail("not_allowed", detail);
    }
    Some(mode)
}

/// Reads an address whose local part leaves room for `+` and a token.
fn return_path(field: Field<'_>) -> Option<EmailAddress> {
    let address = EmailAddress::read(field)?;
    let max = MAX_LOCAL_PART_BYTES - 1 - TOKEN_LENGTH;
    if address.parts().0.len() > max {
        let detail = format!("must have at most {max} bytes before the @: a token follows");
        return field.fail("too_long", detail);
    }
    Some(address)
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

//! Configuration of providers with an HTTP API.

use postern_core::Secret;
use postern_core::config::{Env, secret};
use postern_core::decode::{Field, Object};
use postern_core::settings;
use serde_json::Value;
use url::Url;

use crate::address::{PhoneNumber, is_public_contact};
use crate::config::webhooks::callback;
use crate::delivery::provider::{FcmAccount, HttpConfig, TwilioConfig, TwilioSender, VapidKey};

settings! {
    pub(super) fn read_twilio(object, env: &Env, public_url: Option<&Url>) -> TwilioConfig {
        /// twilio, fcm: address of the API.
        base = { Url::parse("https://api.twilio.com").ok() } ("the provider's") => |field| field.url(),
        /// twilio: account SID.
        account => |field| {
            let sid = field.text(1..=64)?;
            let is_sid = sid.bytes().all(|byte| byte.is_ascii_alphanumeric());
            let sid = is_sid.then_some(sid);
            sid.or_else(|| field.fail("invalid_format", "must be an account SID"))
        },
        /// twilio: auth token.
        auth_token as auth_token_env => |field| secret(field, env),
        /// twilio: sender number.
        from = None ("") => |field| {
            PhoneNumber::parse(field.string()?)
                .or_else(|| field.fail("invalid_format", "must be a number in E.164"))
        },
        /// twilio: messaging service instead of `from`.
        messaging_service = None ("") => |field| field.text(1..=64),
        sender = (read_sender(object, from.clone()?, messaging_service.clone()?)),
    } => TwilioConfig {
        base,
        account,
        auth_token,
        sender,
        callback: public_url.map(|url| callback(url, "webhooks/twilio")),
    }
}

settings! {
    pub(super) fn read_http(object, env: &Env) -> HttpConfig {
        /// http: address of the API.
        url => |field| field.url(),
        /// http: value of `Authorization`.
        authorization as authorization_env = None => |field| secret(field, env),
        /// http: JSON with `{{ id }}`, `{{ channel }}`, `{{ to }}`, `{{ text }}`, `{{ title }}`,
        /// `{{ subject }}`, `{{ html }}`.
        body => |field| field.typed("template").string().map(str::to_owned),
    } => HttpConfig { url, authorization, body }
}

settings! {
    pub(super) fn read_fcm(object) -> FcmAccount {
        /// twilio, fcm: address of the API.
        base = { Url::parse("https://fcm.googleapis.com").ok() } ("the provider's") => |field| field.url(),
        /// fcm: service account key, JSON.
        account as account_file => |field| read_account(field, base.clone()?),
    } => account
}

settings! {
    pub(super) fn read_web_push(object, env: &Env) -> VapidKey {
        /// web-push: `mailto:` or `https:` contact (RFC 8292).
        contact => |field| {
            let text = field.typed("URL").text(1..=256)?;
            let contact = is_public_contact(&text).then_some(text);
            let detail = "must be `mailto:` and an address, or an https URL, of a public host";
            contact.or_else(|| field.fail("invalid_format", detail))
        },
        /// web-push: VAPID key, 32 bytes in base64url.
        private as private_key_env => |field| secret(field, env),
        key = (read_vapid_key(object, private.as_ref()?, contact.clone()?)),
    } => key
}

fn read_sender(
    object: &Object<'_>,
    number: Option<PhoneNumber>,
    service: Option<String>,
) -> Option<TwilioSender> {
    match (number, service) {
        (Some(number), None) => Some(TwilioSender::Number(number)),
        (None, Some(service)) => Some(TwilioSender::Service(service)),
        (None, None) | (Some(_), Some(_)) => {
            let detail = "must have either `from` or `messaging_service`";
            object.fail("missing_field", detail);
            None
        }
    }
}

fn read_account(field: Field<'_>, base: Url) -> Option<FcmAccount> {
    let path = field.typed("path").text(1..=1024)?;
    let read = || {
        let file: Value = serde_json::from_slice(&std::fs::read(&path).ok()?).ok()?;
        let text = |name: &str| file.get(name)?.as_str().map(str::to_owned);
        Some(FcmAccount {
            project: text("project_id")?,
            email: text("client_email")?,
            key: Secret::new(text("private_key")?),
            token_uri: Url::parse(&text("token_uri")?).ok()?,
            base,
        })
    };
    let detail = || format!("{path} is not the JSON file of a service account");
    read().or_else(|| field.fail("unreadable", detail()))
}

fn read_vapid_key(object: &Object<'_>, private: &Secret, contact: String) -> Option<VapidKey> {
    let fail = |reason| object.fail("invalid_format", format!("private_key_env: {reason}"));
    VapidKey::new(private, contact).map_err(fail).ok()
}

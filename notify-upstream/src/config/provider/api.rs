//! Configuration of providers with an HTTP API.

use postern_core::Secret;
use postern_core::config::{Env, secret};
use postern_core::decode::Object;
use url::Url;

use crate::address::{PhoneNumber, is_public_contact};
use crate::config::webhooks::callback;
use crate::delivery::provider::{FcmAccount, HttpConfig, TwilioConfig, TwilioSender, VapidKey};

pub(super) fn read_twilio(
    object: &Object<'_>,
    env: &Env,
    public_url: Option<&Url>,
) -> Option<TwilioConfig> {
    let base = base(object, "https://api.twilio.com");
    let account = object.required("account", |field| {
        let sid = field.text(1..=64)?;
        let is_valid = sid.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if is_valid {
            Some(sid)
        } else {
            field.fail("invalid_format", "must be an account SID")
        }
    });
    let auth_token = secret(object, env, "auth_token_env");
    let number = object.optional("from", |field| {
        PhoneNumber::parse(field.string()?)
            .or_else(|| field.fail("invalid_format", "must be a number in E.164"))
    });
    let service = object.optional("messaging_service", |field| field.text(1..=64));
    let sender = match (number, service) {
        (Some(number), None) => Some(TwilioSender::Number(number)),
        (None, Some(service)) => Some(TwilioSender::Service(service)),
        (None, None) | (Some(_), Some(_)) => {
            object.fail(
                "missing_field",
                "must have either `from` or `messaging_service`",
            );
            None
        }
    };
    let callback = public_url.map(|url| callback(url, "webhooks/twilio"));
    Some(TwilioConfig {
        base,
        account: account?,
        auth_token: auth_token?,
        sender: sender?,
        callback,
    })
}

pub(super) fn read_http(object: &Object<'_>, env: &Env) -> Option<HttpConfig> {
    let url = object.required("url", |field| field.url());
    let authorization = match object.has("authorization_env") {
        true => secret(object, env, "authorization_env").map(Some),
        false => Some(None),
    };
    let body = object.required("body", |field| field.string().map(str::to_owned));
    Some(HttpConfig {
        url: url?,
        authorization: authorization?,
        body: body?,
    })
}

pub(super) fn read_fcm(object: &Object<'_>) -> Option<FcmAccount> {
    let base = base(object, "https://fcm.googleapis.com");
    object.required("account_file", |field| {
        let path = field.text(1..=1024)?;
        let read = std::fs::read(&path)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok());
        let account: Option<FcmAccount> = read.and_then(|file: serde_json::Value| {
            let text = |name: &str| file.get(name)?.as_str().map(str::to_owned);
            Some(FcmAccount {
                project: text("project_id")?,
                email: text("client_email")?,
                key: Secret::new(text("private_key")?),
                token_uri: Url::parse(&text("token_uri")?).ok()?,
                base,
            })
        });
        account.or_else(|| {
            field.fail(
                "unreadable",
                format!("{path} is not the JSON file of a service account"),
            )
        })
    })
}

pub(super) fn read_web_push(object: &Object<'_>, env: &Env) -> Option<VapidKey> {
    let contact = object.required("contact", |field| {
        let text = field.text(1..=256)?;
        if is_public_contact(&text) {
            Some(text)
        } else {
            let detail = "must be `mailto:` and an address, or an https URL, of a public host";
            field.fail("invalid_format", detail)
        }
    });
    let private = secret(object, env, "private_key_env")?;
    match VapidKey::new(&private, contact?) {
        Ok(key) => Some(key),
        Err(reason) => {
            object.fail("invalid_format", format!("private_key_env: {reason}"));
            None
        }
    }
}

fn base(object: &Object<'_>, default: &str) -> Url {
    let default = Url::parse(default).expect("the default URL is valid");
    object.or("base", default, |field| field.url())
}

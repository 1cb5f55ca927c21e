//! The `[webhooks]` tables of the configuration.

use postern_core::config::{Env, secret};
use postern_core::decode::Object;
use url::Url;

use crate::delivery::provider::check_tls;
use crate::receipts::webhook::{
    CertificateCache, MailgunWebhook, SendGridWebhook, SnsWebhook, StandardWebhook, TwilioWebhook,
    Webhooks,
};

/// Reads the table `[webhooks]`. Requests of providers without a table are answered as those with
/// an invalid signature.
pub(super) fn read(root: &Object<'_>, env: &Env, public_url: Option<&Url>) -> Option<Webhooks> {
    let tables = root.section("webhooks", |table| {
        let twilio = table.optional("twilio", |field| {
            field.object(|twilio| {
                let auth_token = secret(twilio, env, "auth_token_env");
                let Some(base) = public_url else {
                    twilio.fail(
                        "missing_field",
                        "needs public_url, which is part of what Twilio signs",
                    );
                    return None;
                };
                Some(TwilioWebhook {
                    auth_token: auth_token?,
                    url: callback(base, "webhooks/twilio"),
                })
            })
        });
        let sns = table.section("sns", |sns| {
            let topics = sns.list("topics", |field| {
                let topic = field.text(1..=256)?;
                let is_valid = SnsWebhook::is_topic(&topic);
                if is_valid {
                    Some(topic)
                } else {
                    field.fail("invalid_format", "must be the ARN of a topic")
                }
            });
            if let Err(reason) = check_tls() {
                sns.fail("tls_unavailable", reason);
                return None;
            }
            Some(SnsWebhook {
                topics,
                certificates: CertificateCache::new(postern_service::calls::http_client()),
            })
        });
        let sendgrid = table.section("sendgrid", |sendgrid| {
            sendgrid.required("public_key", |field| {
                SendGridWebhook::new(field.string()?)
                    .or_else(|| field.fail("invalid_format", "must be base64"))
            })
        });
        let mailgun = table.section("mailgun", |mailgun| {
            secret(mailgun, env, "signing_key_env")
                .map(|signing_key| MailgunWebhook { signing_key })
        });
        let standard = table.section("standard", |standard| {
            let key = secret(standard, env, "secret_env")?;
            let read = StandardWebhook::new(&key);
            if read.is_none() {
                standard.fail(
                    "invalid_format",
                    "the secret must be base64, after `whsec_` or not",
                );
            }
            read
        });
        Some(Webhooks {
            twilio,
            sns,
            sendgrid,
            mailgun,
            standard,
        })
    });
    Some(tables.unwrap_or_default())
}

/// Returns the URL of a path of this service, through the gateway.
pub(super) fn callback(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    url.set_path(&format!("{}/{path}", base.path().trim_end_matches('/')));
    url.set_query(None);
    url
}

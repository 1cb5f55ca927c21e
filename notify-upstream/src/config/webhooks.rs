//! The `[webhooks]` tables of the configuration.

use postern_core::config::{Env, secret};
use postern_core::decode::{Field, Object};
use postern_core::settings;
use url::Url;

use crate::delivery::provider::check_tls;
use crate::receipts::webhook::{
    CertificateCache, MailgunWebhook, SendGridWebhook, SnsWebhook, StandardWebhook, TwilioWebhook,
    Webhooks,
};

settings! {
    /// Reads the table `[webhooks]`. Requests of providers without a table are answered as those with
    /// an invalid signature.
    pub(super) fn read(table, env: &Env, public_url: Option<&Url>) -> Webhooks {
        /// Reports of Twilio.
        twilio = None => |field| field.object(|table| read_twilio(table, env, public_url)),
        /// Reports of SES, by Amazon SNS.
        sns = None => |field| field.object(read_sns),
        /// Reports of SendGrid.
        sendgrid = None => |field| field.object(read_sendgrid),
        /// Reports of Mailgun.
        mailgun = None => |field| field.object(|table| read_mailgun(table, env)),
        /// Reports by Standard Webhooks.
        standard = None => |field| field.object(|table| read_standard(table, env)),
    } => Webhooks { twilio, sns, sendgrid, mailgun, standard }
}

settings! {
    fn read_twilio(twilio, env: &Env, public_url: Option<&Url>) -> TwilioWebhook {
        /// The provider's secret.
        auth_token as auth_token_env => |field| secret(field, env),
        url = (twilio_url(twilio, public_url)),
    } => TwilioWebhook { auth_token, url }
}

settings! {
    fn read_sns(sns) -> SnsWebhook {
        /// Accepted topics.
        topics = [] => |field| field.array(read_topic),
        _tls = (check_tls().map_err(|reason| sns.fail("tls_unavailable", reason)).ok()),
    } => SnsWebhook {
        topics,
        certificates: CertificateCache::new(postern_service::calls::http_client()),
    }
}

settings! {
    fn read_sendgrid(sendgrid) -> SendGridWebhook {
        /// Verification key.
        public_key => |field| {
            SendGridWebhook::new(field.typed("base64").string()?)
                .or_else(|| field.fail("invalid_format", "must be base64"))
        },
    } => public_key
}

settings! {
    fn read_mailgun(mailgun, env: &Env) -> MailgunWebhook {
        /// The provider's secret.
        signing_key as signing_key_env => |field| secret(field, env),
    } => MailgunWebhook { signing_key }
}

settings! {
    fn read_standard(standard, env: &Env) -> StandardWebhook {
        /// The provider's secret.
        key as secret_env => |field| secret(field, env),
        webhook = (StandardWebhook::new(key.as_ref()?).or_else(|| {
            let detail = "the secret must be base64, after `whsec_` or not";
            standard.fail("invalid_format", detail);
            None
        })),
    } => webhook
}

fn twilio_url(twilio: &Object<'_>, public_url: Option<&Url>) -> Option<Url> {
    let Some(base) = public_url else {
        let detail = "needs public_url, which is part of what Twilio signs";
        twilio.fail("missing_field", detail);
        return None;
    };
    Some(callback(base, "webhooks/twilio"))
}

fn read_topic(field: Field<'_>) -> Option<String> {
    let topic = field.typed("ARN").text(1..=256)?;
    let topic = SnsWebhook::is_topic(&topic).then_some(topic);
    topic.or_else(|| field.fail("invalid_format", "must be the ARN of a topic"))
}

/// Returns the URL of a path of this service, through the gateway.
pub(super) fn callback(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    url.set_path(&format!("{}/{path}", base.path().trim_end_matches('/')));
    url.set_query(None);
    url
}

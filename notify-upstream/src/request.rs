//! What a caller asks for, parsed at the door.

use std::sync::Arc;
use std::time::Duration;

use postern_common::clock::Timestamp;
use postern_common::decode::{Field, Object, Value};
use postern_common::token::Caller;
use postern_common::{Code, Problem};
use sha2::{Digest, Sha256};

use crate::address::{ActorId, Recipient};
use crate::notification::{Channel, Priority};
use crate::template::{
    Author, Locale, RenderError, TemplateName, Templates, Unfit, UserTextMistake,
};

/// Bytes of the variables of one notification, as JSON.
const MAX_VARIABLES: usize = 64 << 10;
/// How far ahead something can be scheduled, and how long it may stay of interest. Records are kept
/// for longer.
pub const MAX_AHEAD: Duration = Duration::from_secs(30 * 86_400);

/// A notification that reads well; its template is not checked yet.
#[derive(Clone, Debug)]
pub struct Request {
    /// The channel.
    pub channel: Channel,
    /// Whom it is for.
    pub recipient: Recipient,
    /// The template's name.
    pub template: TemplateName,
    /// Data for the template; never template source. Names are sorted.
    pub variables: serde_json::Map<String, serde_json::Value>,
    /// The wanted language.
    pub locale: Option<Locale>,
    /// The priority.
    pub priority: Priority,
    /// Not before this instant; at once, if it is past.
    pub send_at: Option<Timestamp>,
    /// Of no interest from this instant on.
    pub expires_at: Option<Timestamp>,
}

/// A request whose template exists and has every variable that it needs.
#[derive(Clone, Debug)]
pub struct Draft {
    /// What was asked for.
    pub request: Request,
    /// The template's version now.
    pub template_version: u32,
    /// The language that will be used.
    pub locale: Locale,
}

/// Who asks, in the form that is stored and compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// `service:{service id}`, or `user:{issuer}|{subject}`.
    pub creator: Arc<str>,
    /// The actor that a user is: its subject, where the actor pool issued the token. `None` for
    /// services, and for users of further issuers, whose subjects say nothing about actors.
    pub actor: Option<String>,
}

/// An idempotency key: 1 to 255 visible ASCII characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdempotencyKey(Arc<str>);

/// How the stored form of a service begins.
const SERVICE: &str = "service:";

// === impl Principal ===

impl Principal {
    /// Of a verified caller. Actors are users of the issuer `actor_issuer`. A service's name
    /// belongs to one issuer, so it is enough.
    #[must_use]
    pub fn of(caller: &Caller, actor_issuer: &str) -> Self {
        match caller {
            Caller::User(user) => Self {
                creator: format!("user:{}|{}", user.issuer, user.subject).into(),
                actor: (*user.issuer == *actor_issuer).then(|| user.subject.to_string()),
            },
            Caller::Service(service) => Self {
                creator: format!("{SERVICE}{}", service.service_id).into(),
                actor: None,
            },
        }
    }

    /// Who gave the variables, by the stored form of who asked.
    #[must_use]
    pub fn author(creator: &str) -> Author {
        if Self::is_user(creator) {
            Author::User
        } else {
            Author::Service
        }
    }

    /// Whether the stored form of who asked is a user's.
    #[must_use]
    pub fn is_user(creator: &str) -> bool {
        !creator.starts_with(SERVICE)
    }

    /// A service may address anyone; a user only itself, by `actorId`, unless the configuration
    /// widens it.
    ///
    /// # Errors
    /// 403 `recipient_not_allowed`.
    pub fn may_address(
        &self,
        recipient: &Recipient,
        users_may_address_anyone: bool,
    ) -> Result<(), Problem> {
        if users_may_address_anyone || !Self::is_user(&self.creator) {
            return Ok(());
        }
        match recipient {
            Recipient::ActorId(actor) if self.actor.as_deref() == Some(actor.as_str()) => Ok(()),
            Recipient::ActorId(_) | Recipient::Address(_) => Err(Problem::new(Code::RecipientNotAllowed)
                .detail("a user of the actor pool may address itself, by recipient.actorId equal to its own subject")),
        }
    }

    /// A user's notifications are NORMAL or LOW, unless the configuration widens it: what is urgent
    /// goes before the notifications of everybody else.
    ///
    /// # Errors
    /// 403 `priority_not_allowed`.
    pub fn may_send(&self, priority: Priority, users_may_send_urgent: bool) -> Result<(), Problem> {
        if !Self::is_user(&self.creator) || users_may_send_urgent || !priority.is_urgent() {
            return Ok(());
        }
        Err(Problem::new(Code::PriorityNotAllowed).detail("a user may send NORMAL and LOW"))
    }

    /// Whether the status of a notification may be read.
    #[must_use]
    pub fn may_read(&self, creator: &str, addressee: Option<&str>) -> bool {
        *self.creator == *creator || (self.actor.is_some() && self.actor.as_deref() == addressee)
    }
}

// === impl IdempotencyKey ===

impl IdempotencyKey {
    /// Reads the header's value.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let sound =
            (1..=255).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        sound.then(|| Self(text.into()))
    }

    /// The key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

// === impl Request ===

impl Request {
    /// Reads one notification; every mistake is noted. What is only too early or too late now has a
    /// value all the same: it may be the repeat of something that was accepted in time.
    pub fn read(object: &Object<'_>, now: Timestamp) -> Option<Self> {
        let channel = object.required("channel", |field| field.one_of(Channel::WORDS));
        let recipient = object.required("recipient", |field| Recipient::read(&field, channel));
        let template = object.required("template", |field| {
            TemplateName::parse(field.string()?)
                .or_else(|| field.fail("invalid_format", "must be 1 to 64 of a-z, 0-9, - and _"))
        });
        let variables = object.or("variables", serde_json::Map::new(), variables);
        let locale = object.optional("locale", |field| {
            Locale::parse(field.string()?)
                .or_else(|| field.fail("invalid_format", "must be a tag such as en or de-AT"))
        });
        let priority = object.or("priority", Priority::Normal, |field| {
            field.one_of(Priority::WORDS)
        });
        let send_at = object.optional("sendAt", |field| within_reach(field, now));
        let expires_at = object.optional("expiresAt", |field| {
            let at = within_reach(field, now)?;
            if at <= send_at.unwrap_or(now).max(now) {
                let _noted: Option<()> =
                    field.reject("already_expired", "must lie after now and after sendAt");
            }
            Some(at)
        });
        Some(Self {
            channel: channel?,
            recipient: recipient?,
            template: template?,
            variables,
            locale,
            priority,
            send_at,
            expires_at,
        })
    }

    /// Checks the template and the variables against the templates that are loaded.
    ///
    /// # Errors
    /// 422 `unknown_template`, 422 with every variable that is missing, or that a user wrote and
    /// that is too long, or 422 for variables that the template does not render with.
    pub fn check(self, templates: &Templates, author: Author) -> Result<Draft, Problem> {
        match templates.find(&self.template, self.channel, self.locale.as_ref()) {
            Ok(found) => {
                let missing = found.missing(&self.variables);
                if missing.is_empty() {
                    refuse_user_text(&found.user_text_mistakes(&self.variables, author))?;
                    // What a template does not render with, such as a number where it wants a text,
                    // fails every attempt.
                    found
                        .render(&self.variables, author)
                        .map_err(|error| does_not_render(&error))?;
                    let (template_version, locale) = (found.version(), found.locale().clone());
                    return Ok(Draft {
                        request: self,
                        template_version,
                        locale,
                    });
                }
                Err(missing.into_iter().fold(
                    Problem::new(Code::ValidationFailed),
                    |problem, name| {
                        let pointer = format!("/variables/{}", name.replace('.', "/"));
                        problem.error(
                            &pointer,
                            "missing_variable",
                            format!("the template needs the variable `{name}`"),
                        )
                    },
                ))
            }
            Err(unfit) => {
                let detail = match unfit {
                    Unfit::NoSuchTemplate => "there is no template of this name".to_owned(),
                    Unfit::NotOnThisChannel => {
                        format!(
                            "this template is not there for the channel {}",
                            self.channel.as_str()
                        )
                    }
                };
                Err(Problem::new(Code::UnknownTemplate).error(
                    "/template",
                    "unknown_template",
                    detail,
                ))
            }
        }
    }

    /// The user whom it is for, if it is addressed by `actorId`.
    #[must_use]
    pub fn addressee(&self) -> Option<&ActorId> {
        match &self.recipient {
            Recipient::ActorId(actor) => Some(actor),
            Recipient::Address(_) => None,
        }
    }

    /// SHA-256 over what was asked for, whatever its spelling: two requests with the same
    /// fingerprint ask for the same thing.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        let Self {
            channel,
            recipient,
            template,
            variables,
            locale,
            priority,
            send_at,
            expires_at,
        } = self;
        let canonical = serde_json::json!([
            channel.as_str(),
            recipient,
            template.as_str(),
            variables,
            locale.as_ref().map(Locale::as_str),
            priority.as_str(),
            send_at.map(|at| at.0),
            expires_at.map(|at| at.0),
        ]);
        Sha256::digest(canonical.to_string()).into()
    }
}

fn refuse_user_text(mistakes: &[UserTextMistake]) -> Result<(), Problem> {
    if mistakes.is_empty() {
        return Ok(());
    }
    Err(mistakes
        .iter()
        .fold(Problem::new(Code::ValidationFailed), |problem, mistake| {
            problem.error(
                &format!("/variables/{}", mistake.name),
                mistake.code,
                mistake.detail.clone(),
            )
        }))
}

fn does_not_render(error: &RenderError) -> Problem {
    let detail = match error {
        RenderError::Template(_) => "the template does not render with these variables".to_owned(),
        RenderError::TooLong { .. } => error.to_string(),
    };
    Problem::new(Code::ValidationFailed).error("/variables", "does_not_render", detail)
}

fn variables(field: Field<'_>) -> Option<serde_json::Map<String, serde_json::Value>> {
    let Value::Object(_) = field.value() else {
        return field.fail("invalid_type", "must be an object");
    };
    let serde_json::Value::Object(map) = field.node().to_json() else {
        return None;
    };
    if serde_json::to_vec(&map).map_or(0, |text| text.len()) > MAX_VARIABLES {
        return field.reject(
            "too_large",
            format!("must be at most {MAX_VARIABLES} bytes of JSON"),
        );
    }
    Some(map)
}

fn within_reach(field: Field<'_>, now: Timestamp) -> Option<Timestamp> {
    let at = field.timestamp()?;
    if at > now.plus(MAX_AHEAD) {
        let _noted: Option<()> = field.reject("too_far_ahead", "must lie within 30 days");
    }
    Some(at)
}

#[cfg(test)]
mod tests;

//! The caller of a request, in the form that is stored and compared.

use std::sync::Arc;

use postern_common::token::Caller;
use postern_common::{Code, Problem};

use crate::address::Recipient;
use crate::notification::Priority;
use crate::templates::Author;

/// Who asks, in the form that is stored and compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Principal {
    /// `service:{service id}`, or `user:{issuer}|{subject}`.
    pub(crate) creator: Arc<str>,
    /// The actor that a user is: its subject, where the actor pool issued the token. `None` for
    /// services, and for users of further issuers, whose subjects say nothing about actors.
    pub(crate) actor: Option<String>,
}

/// How the stored form of a service begins.
const SERVICE: &str = "service:";

// === impl Principal ===

impl Principal {
    /// Of a verified caller. Actors are users of the issuer `actor_issuer`. A service's name
    /// belongs to one issuer, so it is enough.
    #[must_use]
    pub(crate) fn of(caller: &Caller, actor_issuer: &str) -> Self {
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
    pub(crate) fn author(creator: &str) -> Author {
        if Self::is_user(creator) {
            Author::User
        } else {
            Author::Service
        }
    }

    /// Whether the stored form of who asked is a user's.
    #[must_use]
    pub(crate) fn is_user(creator: &str) -> bool {
        !creator.starts_with(SERVICE)
    }

    /// A service may address anyone; a user only itself, by `actorId`, unless the configuration
    /// widens it.
    ///
    /// # Errors
    /// 403 `recipient_not_allowed`.
    pub(crate) fn may_address(
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
    pub(crate) fn may_send(
        &self,
        priority: Priority,
        users_may_send_urgent: bool,
    ) -> Result<(), Problem> {
        if !Self::is_user(&self.creator) || users_may_send_urgent || !priority.is_urgent() {
            return Ok(());
        }
        Err(Problem::new(Code::PriorityNotAllowed).detail("a user may send NORMAL and LOW"))
    }

    /// Whether the status of a notification may be read.
    #[must_use]
    pub(crate) fn may_read(&self, creator: &str, addressee: Option<&str>) -> bool {
        *self.creator == *creator || (self.actor.is_some() && self.actor.as_deref() == addressee)
    }
}

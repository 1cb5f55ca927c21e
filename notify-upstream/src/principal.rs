//! The caller of a request, in the form that is stored and compared.

use std::sync::Arc;

use postern_core::token::Caller;
use postern_core::{Code, Problem};

use crate::address::Recipient;
use crate::notification::Priority;
use crate::templates::VariableAuthor;

/// The authenticated caller, in the form that is stored and compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Principal {
    /// `service:{service id}` or `user:{issuer}|{subject}`.
    pub(crate) creator: Arc<str>,
    /// Identifier of the user's actor: the token's subject if the actor pool issued the token.
    /// `None` for services, and for users of other issuers, whose subjects do not identify actors.
    pub(crate) actor: Option<String>,
}

/// The group of users who may read all notifications.
const ADMIN_GROUP: &str = "admin";

/// Prefix of `creator` for users.
const USER_PREFIX: &str = "user:";

impl Principal {
    /// Creates the principal of a verified caller. Users of `actor_issuer` are actors. Service
    /// names are unique, because they belong to one issuer.
    pub(crate) fn of(caller: &Caller, actor_issuer: &str) -> Self {
        match caller {
            Caller::User(user) => Self {
                creator: format!("{USER_PREFIX}{}|{}", user.issuer, user.subject).into(),
                actor: (*user.issuer == *actor_issuer).then(|| user.subject.to_string()),
            },
            Caller::Service(service) => Self {
                creator: format!("service:{}", service.service_id).into(),
                actor: None,
            },
        }
    }

    /// Returns whether the caller may read all notifications: a user of the actor pool in the group
    /// `admin`, or a service among `readers`. Group and service are those of the verified token.
    pub(crate) fn may_read_all(caller: &Caller, actor_issuer: &str, readers: &[String]) -> bool {
        match caller {
            Caller::User(_) => {
                let mut groups = caller.actor_groups(actor_issuer).iter();
                groups.any(|group| group == ADMIN_GROUP)
            }
            Caller::Service(service) => readers.iter().any(|name| **name == *service.service_id),
        }
    }

    /// Returns the author of a notification's variables, from the stored `creator`.
    pub(crate) fn author(creator: &str) -> VariableAuthor {
        if Self::is_user(creator) {
            VariableAuthor::User
        } else {
            VariableAuthor::Service
        }
    }

    /// Returns whether the stored `creator` is a user.
    pub(crate) fn is_user(creator: &str) -> bool {
        creator.starts_with(USER_PREFIX)
    }

    /// Returns the caller whose turn a row of `creator` waits for: a user, or empty for all services.
    pub(crate) fn queue_caller(creator: &str) -> &str {
        if Self::is_user(creator) { creator } else { "" }
    }

    /// Checks that the caller may send to `recipient`. Services may address any recipient; users
    /// only themselves, by `actorId`, unless the configuration allows more.
    ///
    /// # Errors
    /// 403 `recipient_not_allowed`.
    pub(crate) fn authorize_recipient(
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

    /// Checks that the caller may use `priority`. Users may send NORMAL and LOW, unless the
    /// configuration allows more, because urgent notifications delay those of other callers.
    ///
    /// # Errors
    /// 403 `priority_not_allowed`.
    pub(crate) fn authorize_priority(
        &self,
        priority: Priority,
        users_may_send_urgent: bool,
    ) -> Result<(), Problem> {
        if !Self::is_user(&self.creator) || users_may_send_urgent || !priority.is_urgent() {
            return Ok(());
        }
        Err(Problem::new(Code::PriorityNotAllowed).detail("a user may send NORMAL and LOW"))
    }

    /// Returns whether the caller may read the status of a notification.
    pub(crate) fn may_read(&self, creator: &str, addressee: Option<&str>) -> bool {
        *self.creator == *creator || (self.actor.is_some() && self.actor.as_deref() == addressee)
    }
}

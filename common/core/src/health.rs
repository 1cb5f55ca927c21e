//! Readiness: which components of a process work, and the reason for each that does not.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::watch;

/// Components of a process, each with the reason why it is not ready or `None` if it is ready.
pub type HealthReport = BTreeMap<&'static str, Option<String>>;

/// The readiness of a process, as the readiness of its components.
#[derive(Clone, Debug, Default)]
pub struct Health {
    parts: Arc<watch::Sender<HealthReport>>,
    degraded: Arc<RwLock<BTreeMap<String, String>>>,
}

/// The readiness of one component. Only the owner of the component updates it.
#[derive(Clone, Debug)]
pub struct Check {
    health: Health,
    part: &'static str,
}

/// A partner whose outage degrades a process that is ready nevertheless, such as a mail server: a
/// restart, or another replica, would not help.
#[derive(Clone, Debug)]
pub struct Degradation {
    health: Health,
    name: String,
}

// === impl Health ===

impl Health {
    /// Creates a registry without components, which is ready.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a component, which is not ready until [`Check::set_ok`] is called.
    #[must_use]
    pub fn check(&self, part: &'static str) -> Check {
        let health = self.clone();
        let check = Check { health, part };
        check.set_failed("starting");
        check
    }

    /// Returns a copy of all components and their reasons.
    #[must_use]
    pub fn parts(&self) -> HealthReport {
        self.parts.borrow().clone()
    }

    /// Registers a partner, which is not degraded until [`Degradation::set`] is called.
    #[must_use]
    pub fn degradation(&self, name: impl Into<String>) -> Degradation {
        let (health, name) = (self.clone(), name.into());
        Degradation { health, name }
    }

    /// Returns the failing partners, each with the reason.
    #[must_use]
    pub fn degraded(&self) -> BTreeMap<String, String> {
        self.degraded.read().clone()
    }

    /// Returns a receiver that is notified when a component changes.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<HealthReport> {
        self.parts.subscribe()
    }

    /// Returns whether every component is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.parts.borrow().values().all(Option::is_none)
    }
}

/// Writes `ready`, or `not ready` followed by each failed component and its reason, on one line.
impl std::fmt::Display for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = self.parts.borrow();
        let is_ready = parts.values().all(Option::is_none);
        f.write_str(if is_ready { "ready" } else { "not ready" })?;
        let failed = parts.iter();
        let mut failed = failed.filter_map(|(part, reason)| Some((part, reason.as_ref()?)));
        failed.try_for_each(|(part, reason)| write!(f, "; {part}: {reason}"))
    }
}

// === impl Check ===

impl Check {
    /// Marks the component as ready.
    pub fn set_ok(&self) {
        self.set(None);
    }

    /// Marks the component as not ready, for a reason that operators read.
    pub fn set_failed(&self, reason: impl Into<String>) {
        self.set(Some(reason.into()));
    }

    fn set(&self, reason: Option<String>) {
        self.health.parts.send_if_modified(|parts| {
            let before = parts.insert(self.part, reason.clone());
            before != Some(reason)
        });
    }
}

// === impl Degradation ===

impl Degradation {
    /// Marks the partner as failing, for a reason that operators read. It contains no secret and no
    /// address of a person.
    pub fn set(&self, reason: impl Into<String>) {
        let mut degraded = self.health.degraded.write();
        degraded.insert(self.name.clone(), reason.into());
    }

    /// Marks the partner as working.
    pub fn clear(&self) {
        self.health.degraded.write().remove(&self.name);
    }
}

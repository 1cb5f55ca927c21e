//! Reloads templates when their files change.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use postern_core::health::Degradation;
use prometheus::IntGauge;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::templates::{Locale, Templates, fingerprint};

/// Reloads changed templates.
pub(crate) struct TemplateReloader {
    pub(crate) folder: PathBuf,
    /// The locale of notifications without one.
    pub(crate) default_locale: Locale,
    pub(crate) templates: Arc<ArcSwap<Templates>>,
    /// The fingerprint of the folder at the last check; `None` to read it in any case.
    pub(crate) seen: Option<u64>,
    /// 1, or 0 if the last change was rejected.
    pub(crate) is_successful: IntGauge,
    /// What was rejected, for readiness.
    pub(crate) rejection: Degradation,
}

impl TemplateReloader {
    /// Reloads the templates if the folder has changed, and returns whether they were replaced. A
    /// set with an error is rejected as a whole.
    pub(crate) fn step(&mut self) -> bool {
        let now = fingerprint(&self.folder);
        if self.seen.replace(now) == Some(now) {
            return false;
        }
        let loaded = Templates::load(&self.folder, self.default_locale.clone());
        self.is_successful.set(i64::from(loaded.is_ok()));
        match loaded {
            Ok(templates) => {
                tracing::info!(templates = templates.len(), "templates reloaded");
                self.templates.store(Arc::new(templates));
                self.rejection.clear();
                true
            }
            Err(mistakes) => {
                tracing::error!(errors = %mistakes, "template reload rejected");
                self.rejection.set(mistakes.to_string());
                false
            }
        }
    }

    /// Checks every two seconds until shutdown, and reloads at SIGHUP.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let Ok(mut hangup) = signal(SignalKind::hangup()) else {
            tracing::error!("signal handler registration failed, template reload disabled");
            return;
        };
        let mut tick = tokio::time::interval(Duration::from_secs(2));
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = hangup.recv() => self.seen = None,
                _ = tick.tick() => {}
            }
            let stepped = tokio::task::spawn_blocking(move || {
                self.step();
                self
            });
            let Ok(reloader) = stepped.await else { return };
            self = reloader;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::templates::TemplateName;

    #[test]
    fn changed_templates_are_reloaded_and_invalid_sets_rejected() {
        let folder = tempfile::tempdir().expect("folder");
        let write = |name: &str, version: u32, text: &str| {
            let folder = folder.path().join(name);
            std::fs::create_dir_all(&folder).expect("folder");
            std::fs::write(folder.join("template.toml"), format!("version = {version}"))
                .expect("file");
            std::fs::write(folder.join("sms.en.txt"), text).expect("file");
        };
        write("a", 1, "one");
        let default_locale = Locale::parse("en").expect("tag");
        let templates = Templates::load(folder.path(), default_locale.clone()).expect("valid");
        let templates = Arc::new(ArcSwap::from_pointee(templates));
        let seen = Some(fingerprint(folder.path()));
        let is_successful = IntGauge::new("successful", "For a test").expect("a name");
        let health = postern_core::health::Health::new();
        let mut reloader = TemplateReloader {
            folder: folder.path().to_owned(),
            default_locale,
            templates: Arc::clone(&templates),
            seen,
            is_successful: is_successful.clone(),
            rejection: health.degradation("templates"),
        };
        let name = TemplateName::parse("a").expect("name");
        let version = || {
            let templates = templates.load();
            let found = templates.find(&name, crate::notification::Channel::Sms, None);
            found.map(|found| found.settings.version)
        };
        assert!(!reloader.step(), "nothing has changed");
        write("a", 2, "two, longer");
        assert!(reloader.step());
        assert_eq!(version(), Ok(2));
        write("a", 3, "three, longer still");
        write("b", 1, "{{ broken");
        assert!(!reloader.step());
        assert_eq!((version(), is_successful.get()), (Ok(2), 0));
        assert!(health.degraded()["templates"].contains("sms.en.txt"));
        write("b", 1, " ");
        assert!(!reloader.step(), "an empty part is an unfinished upload");
        write("b", 1, "four");
        assert!(reloader.step());
        assert_eq!((version(), is_successful.get()), (Ok(3), 1));
        assert!(health.degraded().is_empty());
        reloader.seen = None;
        assert!(reloader.step(), "as at SIGHUP");
    }
}

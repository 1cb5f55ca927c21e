//! The time line of a person, a request or a notification, over all services.
//!
//! Input: the databases of the authentication and notification services, from an operator's
//! configuration files or in the data folder of an embedded installation, and optionally the access
//! log of the gateway. Output: one [`Timeline`]. The services need not be running. Depends on no
//! other module.

mod access_log;

use std::path::{Path, PathBuf};

use postern_auth::AuditReader;
use postern_core::config::{self, Env};
use postern_core::exit::Exit;
use postern_notify::NotificationReader;
use postern_service::timeline::{Timeline, TimelineQuery, TimelineSelector};
use serde_json::Value;

use self::access_log::{AccessLogFilter, read_access_log};

/// Where the events are read.
#[derive(Clone, Debug)]
pub struct TimelineSources {
    /// The folder with `auth.toml` and `notify.toml`; `None` for an embedded installation.
    pub config: Option<PathBuf>,
    /// The data folder of an embedded installation.
    pub data_dir: PathBuf,
    /// An access log of the gateway. Default that of an embedded installation.
    pub access_log: Option<PathBuf>,
}

// === impl TimelineSources ===

impl TimelineSources {
    fn access_log(&self) -> Option<PathBuf> {
        let embedded = || {
            let file = self.data_dir.join("access.log");
            (self.config.is_none() && file.is_file()).then_some(file)
        };
        self.access_log.clone().or_else(embedded)
    }
}

/// Returns the events of a selection in the order of time.
///
/// # Errors
/// Exit status 64 for an invalid configuration file or if nothing is selected, 69 if a database or
/// the access log is unavailable.
pub async fn timeline(
    sources: &TimelineSources,
    query: &TimelineQuery,
    env: &Env,
) -> Result<Timeline, Exit> {
    if query.selector == TimelineSelector::All {
        return Err(Exit::usage(
            "a selector is required: --email, --user, --request or --notification",
        ));
    }
    let (auth, notify) = match &sources.config {
        Some(folder) => open_configured(folder, env).await?,
        None => open_embedded(&sources.data_dir).await?,
    };
    let audited = auth.timeline(query).await?;
    let notified = notify.timeline(query, &audited.subjects).await?;
    let mut is_truncated = audited.is_truncated || notified.is_truncated;
    let mut entries = audited.entries;
    if let Some(path) = &sources.access_log() {
        let mut filter = AccessLogFilter::of(query);
        filter.subjects.extend(audited.subjects.iter().cloned());
        let ids = entries
            .iter()
            .filter_map(|entry| entry.members.get("requestId"));
        filter
            .request_ids
            .extend(ids.filter_map(Value::as_str).map(str::to_owned));
        entries.extend(read_access_log(path, &filter)?);
    }
    entries.extend(notified.entries);
    let mut timeline = Timeline::of(entries, query.limit);
    is_truncated |= timeline.is_truncated;
    timeline.is_truncated = is_truncated;
    timeline.subjects = audited.subjects;
    Ok(timeline)
}

async fn open_configured(
    folder: &Path,
    env: &Env,
) -> Result<(AuditReader, NotificationReader), Exit> {
    let auth = config::load(&folder.join("auth.toml"), |root| {
        postern_auth::Config::read(root, env)
    });
    let notify = config::load(&folder.join("notify.toml"), |root| {
        postern_notify::Config::read(root, env)
    });
    let (mut auth, notify) = (auth?, notify?);
    Ok((
        AuditReader::open(&mut auth).await?,
        NotificationReader::open(&notify).await?,
    ))
}

async fn open_embedded(data_dir: &Path) -> Result<(AuditReader, NotificationReader), Exit> {
    let url = |name: &str| {
        let path = data_dir.join(name);
        // Opening a database would create it.
        if path.is_file() {
            Ok(format!("sqlite://{}", path.display()))
        } else {
            Err(Exit::usage(format!(
                "{} does not exist: set --data-dir, or --config for services with their own configuration files",
                path.display()
            )))
        }
    };
    let (auth, notify) = (url("auth.db")?, url("notify.db")?);
    Ok((
        AuditReader::open_database(&auth).await?,
        NotificationReader::open_database(&notify).await?,
    ))
}

#[cfg(test)]
mod tests;

//! The time line of a person, a request or a notification, over all services.
//!
//! Input: the databases of the authentication and notification services, from an operator's
//! configuration files or in the data folder of an embedded installation, and optionally the access
//! log of the gateway. Output: one [`Timeline`]. The services need not be running.

mod access_log;

use std::path::{Path, PathBuf};

use postern_auth::AuditReader;
use postern_core::config::{self, Env};
use postern_core::exit::Exit;
use postern_notify::NotificationReader;
use postern_service::timeline::{Timeline, TimelineQuery, TimelineSelector};

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
    let mut entries = audited.entries;
    if let Some(path) = &sources.access_log() {
        let mut filter = AccessLogFilter::of(query);
        filter.subjects.extend(audited.subjects.iter().cloned());
        let members = entries.iter().map(|entry| &entry.members);
        let ids = members.filter_map(|members| members.get("requestId")?.as_str());
        filter.request_ids.extend(ids.map(str::to_owned));
        entries.extend(read_access_log(path, &filter)?);
    }
    entries.extend(notified.entries);
    let mut timeline = Timeline::of(entries, query.limit);
    timeline.is_truncated |= audited.is_truncated || notified.is_truncated;
    timeline.subjects = audited.subjects;
    Ok(timeline)
}

async fn open_configured(
    folder: &Path,
    env: &Env,
) -> Result<(AuditReader, NotificationReader), Exit> {
    let [auth, notify] = ["auth.toml", "notify.toml"].map(|name| folder.join(name));
    let mut auth = config::load(&auth, |root| postern_auth::Config::read(root, env))?;
    let notify = config::load(&notify, |root| postern_notify::Config::read(root, env))?;
    let auth = AuditReader::open(&mut auth).await?;
    Ok((auth, NotificationReader::open(&notify).await?))
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
    let auth = AuditReader::open_database(&auth).await?;
    Ok((auth, NotificationReader::open_database(&notify).await?))
}

#[cfg(test)]
mod tests;

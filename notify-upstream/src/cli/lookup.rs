//! Commands that print notifications.

use clap::Args;
use postern_core::Clock;
use postern_core::clock::Timestamp;
use postern_core::exit::Exit;
use postern_service::timeline::{MAX_ENTRIES, TimelineQuery, TimelineSelector};
use serde_json::json;

use super::{instant, one_of, open};
use crate::Config;
use crate::address::canonical;
use crate::dispatch::ChannelFlow;
use crate::notification::{Channel, NotificationId};
use crate::status::list::{DEFAULT_PAGE_SIZE, ListAccess, ListFilter, ListReader, MAX_PAGE_SIZE};
use crate::status::timeline::NotificationReader;
use crate::status::view::{NotificationStatus, StatusView};
use crate::store::NotificationSnapshot;
use postern_core::output::Output;

/// A selection of notifications to print, newest first.
#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    /// Address or actor id of the recipient, as a whole.
    #[arg(long)]
    recipient: Option<String>,
    /// Status: SCHEDULED, QUEUED, SENT, DELIVERED, FAILED, CANCELLED or EXPIRED.
    #[arg(long, value_parser = one_of(NotificationStatus::NAMES))]
    status: Option<NotificationStatus>,
    /// Name of the template.
    #[arg(long)]
    template: Option<String>,
    /// Channel: email, sms or push.
    #[arg(long, value_parser = one_of(Channel::NAMES))]
    channel: Option<Channel>,
    /// Accepted at or after this time (RFC 3339).
    #[arg(long, value_parser = instant)]
    from: Option<Timestamp>,
    /// Accepted before this time (RFC 3339).
    #[arg(long, value_parser = instant)]
    to: Option<Timestamp>,
    /// Maximum number of notifications.
    #[arg(long, default_value_t = DEFAULT_PAGE_SIZE)]
    limit: usize,
}

/// Prints the events of a notification.
pub(super) async fn show(config: &Config, id: NotificationId, output: Output) -> Result<(), Exit> {
    let reader = NotificationReader::new(open(config).await?, Clock::system());
    let selector = TimelineSelector::Notification(id.to_string());
    let timeline = reader
        .timeline(&TimelineQuery::new(selector, MAX_ENTRIES), &[])
        .await?;
    if timeline.entries.is_empty() {
        return Err(Exit::usage(format!("there is no notification {id}")));
    }
    for entry in &timeline.entries {
        output.record(&entry.to_string(), &json!(entry))?;
    }
    Ok(())
}

/// Prints notifications, newest first.
pub(super) async fn list(
    config: &Config,
    arguments: ListArguments,
    output: Output,
) -> Result<(), Exit> {
    let limit = arguments.limit;
    let filter = ListFilter {
        recipient: arguments.recipient.map(|text| canonical(text.trim())),
        status: arguments.status,
        template: arguments.template,
        channel: arguments.channel,
        from: arguments.from,
        to: arguments.to,
    };
    let (store, now) = (open(config).await?, Clock::system().now());
    let reader = ListReader {
        store: &store,
        access: ListAccess::All,
        filter,
    };
    let view = |snapshot: &NotificationSnapshot| {
        StatusView::of(snapshot, now, |_| ChannelFlow::default(), |_| false)
    };
    let (mut after, mut printed) = (None, 0);
    while printed < limit {
        let page_size = (limit - printed).min(MAX_PAGE_SIZE);
        let page = reader.page(after, page_size, view).await?;
        printed += page.notifications.len();
        for (view, snapshot) in &page.notifications {
            let (record, status) = (&snapshot.record, view.status.as_str());
            let text = format!(
                "{} {} {} {} {status} {}",
                snapshot.id,
                record.created_at,
                record.lane.channel.as_str(),
                record.lane.priority.as_str(),
                record.template,
            );
            output.record(&text, &json!(view))?;
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    Ok(())
}

// === impl NotificationReader ===

impl NotificationReader {
    /// Opens the history of a configuration, without starting the service.
    ///
    /// # Errors
    /// Exit status 69 if the database is unavailable.
    pub async fn open(config: &Config) -> Result<Self, Exit> {
        let store = open(config).await?;
        Ok(Self::new(store, Clock::system()))
    }

    /// Opens the history in a database.
    ///
    /// # Errors
    /// As [`NotificationReader::open`].
    pub async fn open_database(url: &str) -> Result<Self, Exit> {
        let store = super::open_database(url).await?;
        Ok(Self::new(store, Clock::system()))
    }
}

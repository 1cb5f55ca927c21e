//! Searching the audit trail: pages of recent events.
//!
//! A page is read in the order of an index, and filtered here. It reads at most [`SCANNED_ROWS`] rows,
//! so that each takes a bounded time: it may have fewer events than asked for although there are more,
//! which its cursor continues with.

use std::collections::BTreeMap;

use postern_core::clock::Timestamp;
use postern_core::email::EmailAddress;
use serde::Serialize;
use uuid::Uuid;

use super::AuditReader;
use crate::store::{AuditPosition, AuditQuery, AuditRow, AuditSelector, StoreError};

const SCANNED_ROWS: usize = 2000;

/// A selection of audit events. Every property that is given must match.
#[derive(Clone, Debug)]
pub(crate) struct SignInSearch {
    pub(crate) email: Option<EmailAddress>,
    pub(crate) user: Option<String>,
    pub(crate) request: Option<String>,
    /// `ok` or the code of an error.
    pub(crate) outcome: Option<String>,
    /// The reason that the response hid.
    pub(crate) reason: Option<String>,
    pub(crate) since: Timestamp,
    pub(crate) until: Timestamp,
    pub(crate) limit: usize,
    pub(crate) after: Option<AuditPosition>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SignInPage {
    sign_ins: Vec<AuditRow>,
    next_cursor: Option<String>,
}

// === impl AuditPosition ===

impl AuditPosition {
    fn cursor(&self) -> String {
        format!("{}.{}", self.at, self.id)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (at, id) = text.split_once('.')?;
        Some(Self {
            at: at.parse().ok()?,
            id: Uuid::try_parse(id).ok()?.to_string(),
        })
    }

    fn of(row: &AuditRow) -> Self {
        Self {
            at: row.at,
            id: row.id.clone(),
        }
    }
}

// === impl SignInSearch ===

impl SignInSearch {
    fn accepts(&self, row: &AuditRow, hashes: &[Vec<u8>]) -> bool {
        let equals = |wanted: &Option<String>, has: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| has == Some(wanted))
        };
        let hash = row.email_hash.as_ref();
        (hashes.is_empty() || hash.is_some_and(|hash| hashes.contains(hash)))
            && equals(&self.user, row.subject.as_deref())
            && equals(&self.request, Some(&row.request_id))
            && equals(&self.outcome, Some(&row.outcome))
            && equals(&self.reason, row.reason.as_deref())
    }

    /// Returns the parts of the indexes that contain the selection.
    fn selectors(&self, hashes: &[Vec<u8>]) -> Vec<AuditSelector> {
        if let Some(request) = &self.request {
            return vec![AuditSelector::RequestId(request.clone())];
        }
        if let Some(user) = &self.user {
            return vec![AuditSelector::Subject(user.clone())];
        }
        if hashes.is_empty() {
            return vec![AuditSelector::All];
        }
        let hashes = hashes.iter().cloned();
        hashes.map(AuditSelector::EmailHash).collect()
    }
}

// === impl AuditReader ===

impl AuditReader {
    /// Returns the newest events of a selection, behind the cursor.
    ///
    /// # Errors
    /// The database is unavailable, or takes too long.
    pub(crate) async fn search(&self, search: &SignInSearch) -> Result<SignInPage, StoreError> {
        let email = search.email.iter();
        let hashes = email.flat_map(|email| self.key_ring.email_hashes(email.as_str()));
        let hashes: Vec<Vec<u8>> = hashes.collect();
        let mut rows = BTreeMap::new();
        for selector in search.selectors(&hashes) {
            let query = AuditQuery {
                selector,
                since: search.since,
                until: search.until,
                after: search.after.clone(),
                limit: i64::try_from(SCANNED_ROWS).unwrap_or(i64::MAX),
            };
            let part = self.store.audit_rows(&query).await?;
            rows.extend(part.into_iter().map(|row| (AuditPosition::of(&row), row)));
        }
        // The newest of the union are the newest of each.
        let mut rows = rows.into_iter().rev().take(SCANNED_ROWS).peekable();
        let (mut sign_ins, mut scanned, mut last) = (Vec::new(), 0, None);
        while sign_ins.len() < search.limit
            && let Some((position, row)) = rows.next()
        {
            scanned += 1;
            last = Some(position);
            sign_ins.extend(Some(row).filter(|row| search.accepts(row, &hashes)));
        }
        let is_end = rows.peek().is_none() && scanned < SCANNED_ROWS;
        let next = last.filter(|_| !is_end);
        Ok(SignInPage {
            sign_ins,
            next_cursor: next.map(|position| position.cursor()),
        })
    }
}

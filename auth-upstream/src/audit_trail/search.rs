//! Searching the audit trail: pages of recent events.
//!
//! A page is read in chunks in the order of an index, and filtered here. It reads at most
//! [`MAX_SCANNED_ROWS`] rows, so that each takes a bounded time: it may have fewer events than asked
//! for although there are more, which its cursor continues with.

use std::collections::BTreeMap;

use postern_core::clock::Timestamp;
use postern_core::email::EmailAddress;
use serde::Serialize;
use uuid::Uuid;

use super::AuditReader;
use crate::store::{AuditPosition, AuditQuery, AuditRow, AuditSelector, StoreError};

/// Number of rows that are read at a time.
const CHUNK_ROWS: usize = 500;
/// Maximum number of rows that are read for a page.
const MAX_SCANNED_ROWS: usize = 5000;
/// A selection of audit events. Every property that is given must match.
#[derive(Clone, Debug)]
pub(crate) struct SignInSearch {
    pub(crate) email: Option<EmailAddress>,
    /// The pool's subject.
    pub(crate) user: Option<String>,
    /// The id of the request.
    pub(crate) request: Option<String>,
    /// `ok` or the code of an error.
    pub(crate) outcome: Option<String>,
    /// The reason that the response hid.
    pub(crate) reason: Option<String>,
    /// Events at or after this time.
    pub(crate) since: Timestamp,
    /// Events before this time.
    pub(crate) until: Timestamp,
    pub(crate) limit: usize,
    /// The last event of the previous page.
    pub(crate) after: Option<AuditPosition>,
}

/// A page of audit events, newest first.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SignInPage {
    sign_ins: Vec<AuditRow>,
    next_cursor: Option<String>,
}

// === impl AuditPosition ===

impl AuditPosition {
    /// Encodes the position as a cursor.
    fn cursor(&self) -> String {
        format!("{}.{}", self.at, self.id)
    }

    /// Decodes a cursor.
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
        let is_email = hashes.is_empty()
            || row
                .email_hash
                .as_ref()
                .is_some_and(|hash| hashes.contains(hash));
        is_email
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
        hashes
            .iter()
            .cloned()
            .map(AuditSelector::EmailHash)
            .collect()
    }
}

// === impl AuditReader ===

impl AuditReader {
    /// Returns the newest events of a selection, behind the cursor.
    ///
    /// # Errors
    /// The database is unavailable, or takes too long.
    pub(crate) async fn search(&self, search: &SignInSearch) -> Result<SignInPage, StoreError> {
        let hashes = search
            .email
            .as_ref()
            .map(|email| self.key_ring.email_hashes(email.as_str()));
        let hashes: Vec<Vec<u8>> = hashes
            .into_iter()
            .flatten()
            .map(|hash| hash.to_vec())
            .collect();
        let selectors = search.selectors(&hashes);
        let (mut found, mut scanned) = (Vec::new(), 0);
        let mut after = search.after.clone();
        loop {
            let rows = self.chunk(search, &selectors, after.as_ref()).await?;
            let is_last = rows.len() < CHUNK_ROWS;
            scanned += rows.len();
            let count = rows.len();
            for (index, row) in rows.into_iter().enumerate() {
                let position = AuditPosition::of(&row);
                if search.accepts(&row, &hashes) {
                    found.push(row);
                }
                if found.len() == search.limit {
                    let is_end = is_last && index + 1 == count;
                    return Ok(SignInPage::of(found, (!is_end).then_some(position)));
                }
                after = Some(position);
            }
            if is_last || scanned >= MAX_SCANNED_ROWS {
                return Ok(SignInPage::of(found, after.filter(|_| !is_last)));
            }
        }
    }

    /// Returns the next rows of all selectors, newest first. The newest of their union are the
    /// newest of each.
    async fn chunk(
        &self,
        search: &SignInSearch,
        selectors: &[AuditSelector],
        after: Option<&AuditPosition>,
    ) -> Result<Vec<AuditRow>, StoreError> {
        let mut rows = BTreeMap::new();
        for selector in selectors {
            let query = AuditQuery {
                selector: selector.clone(),
                since: search.since,
                until: search.until,
                after: after.cloned(),
                limit: i64::try_from(CHUNK_ROWS).unwrap_or(i64::MAX),
            };
            let part = self.store.audit_rows(&query).await?;
            rows.extend(part.into_iter().map(|row| (AuditPosition::of(&row), row)));
        }
        Ok(rows.into_values().rev().take(CHUNK_ROWS).collect())
    }
}

// === impl SignInPage ===

impl SignInPage {
    fn of(sign_ins: Vec<AuditRow>, next: Option<AuditPosition>) -> Self {
        Self {
            sign_ins,
            next_cursor: next.map(|position| position.cursor()),
        }
    }
}

//! The users and groups of the pool as operators see them, in JSON. All calls are signed.

use aws_sdk_cognitoidentityprovider::types::UserType;
use postern_core::clock::Timestamp;
use serde_json::{Value, json};

use super::admin::{PoolAdmin, admin_call, value_of};
use super::error::PoolResult;
use crate::telemetry::PoolOperation as Op;

/// Maximum number of users and groups in one answer, which is Cognito's.
const PAGE_SIZE: i32 = 60;

impl PoolAdmin {
    /// Lists the users whose attribute is, or with `^=` begins with, a value:
    /// `{"users": […], "nextCursor": …}`. All users without a filter.
    pub(crate) async fn list_users(
        &self,
        filter: Option<(&str, &str)>,
        cursor: Option<String>,
    ) -> PoolResult<Value> {
        // See "Filter" of API_ListUsers.
        let quoted = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"");
        let filter = filter.map(|(name, value)| format!("{name} \"{}\"", quoted(value)));
        let call = self.client.list_users().user_pool_id(&self.pool.pool_id);
        let call = call.set_filter(filter).set_pagination_token(cursor);
        let sent = call.limit(PAGE_SIZE).send();
        let response = self.breaker.call(Op::ListUsers, sent).await?;
        let users: Vec<Value> = response.users().iter().map(user).collect();
        Ok(json!({ "users": users, "nextCursor": response.pagination_token() }))
    }

    pub(crate) async fn groups(&self, of_user: Option<&str>) -> PoolResult<Vec<String>> {
        let groups = if let Some(name) = of_user {
            let call = admin_call!(self, admin_list_groups_for_user, name).limit(PAGE_SIZE);
            let called = self.breaker.call(Op::AdminListGroupsForUser, call.send());
            called.await?.groups
        } else {
            let call = self.client.list_groups().user_pool_id(&self.pool.pool_id);
            let called = self
                .breaker
                .call(Op::ListGroups, call.limit(PAGE_SIZE).send());
            called.await?.groups
        };
        let groups = groups.into_iter().flatten();
        Ok(groups.filter_map(|group| group.group_name).collect())
    }

    pub(crate) async fn add_to_group(&self, name: &str, group: &str) -> PoolResult {
        let call = admin_call!(self, admin_add_user_to_group, name).group_name(group);
        self.breaker.run(Op::AdminAddUserToGroup, call.send()).await
    }

    pub(crate) async fn remove_from_group(&self, name: &str, group: &str) -> PoolResult {
        let call = admin_call!(self, admin_remove_user_from_group, name).group_name(group);
        self.breaker
            .run(Op::AdminRemoveUserFromGroup, call.send())
            .await
    }

    pub(crate) async fn enable(&self, name: &str) -> PoolResult {
        let call = admin_call!(self, admin_enable_user, name);
        self.breaker.run(Op::AdminEnableUser, call.send()).await
    }

    pub(crate) async fn disable(&self, name: &str) -> PoolResult {
        let call = admin_call!(self, admin_disable_user, name);
        self.breaker.run(Op::AdminDisableUser, call.send()).await
    }
}

fn user(user: &UserType) -> Value {
    let attributes = user.attributes();
    let created_at = user.user_create_date();
    json!({
        "username": user.username(),
        "subject": value_of(attributes, "sub").or(user.username()),
        "email": value_of(attributes, "email"),
        "emailVerified": value_of(attributes, "email_verified") == Some("true"),
        "enabled": user.enabled(),
        "status": user.user_status().map(|status| status.as_str()),
        "createdAt": created_at.map(|at| Timestamp(at.secs().saturating_mul(1000))),
    })
}

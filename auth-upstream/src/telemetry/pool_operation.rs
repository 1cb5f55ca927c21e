//! The operations of Cognito's API that this service calls, as names of spans and labels.

/// Defines the operations by their names in Cognito's API.
macro_rules! operations {
    ($($name:ident),+ $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum PoolOperation {
            $($name,)+
        }

        impl PoolOperation {
            /// Returns the name in Cognito's API, as `rpc.method`.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)+
                }
            }

            pub(crate) fn span_name(self) -> &'static str {
                match self {
                    $(Self::$name => concat!("Cognito Identity Provider.", stringify!($name)),)+
                }
            }
        }
    };
}

operations! {
    AdminAddUserToGroup,
    AdminConfirmSignUp,
    AdminCreateUser,
    AdminDeleteUser,
    AdminDisableUser,
    AdminEnableUser,
    AdminGetUser,
    AdminListGroupsForUser,
    AdminRemoveUserFromGroup,
    AdminSetUserPassword,
    AdminUpdateUserAttributes,
    AdminUserGlobalSignOut,
    ConfirmForgotPassword,
    ConfirmSignUp,
    DeleteUser,
    DescribeUserPool,
    DescribeUserPoolClient,
    ForgotPassword,
    GetTokensFromRefreshToken,
    InitiateAuth,
    ListGroups,
    ListUsers,
    ResendConfirmationCode,
    RespondToAuthChallenge,
    RevokeToken,
    SignUp,
}

//! Groups that change their protocol.

use super::*;

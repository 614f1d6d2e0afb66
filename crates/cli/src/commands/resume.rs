//! `resume`: gives a suspended volume its key back.

use serde_json::json;

use crate::args::ResumeArgs;
use crate::control::Client;

pub(crate) fn run(args: &ResumeArgs) -> anyhow::Result<()> {
    Client::of(&args.name)?.command(&json!({"command": "resume"}), None).map(drop)
}

//! `gabion ca`: the private authority and what it issues (docs/security.md).

use crate::screen::put;
use clap::{Args, Subcommand};
use gabion_base::Result;
use gabion_tls::ca::{AUTHORITY_DAYS, Authority, DAYS, DAYS_MAX, Made};
use gabion_tls::{Identity, Role};
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub(crate) enum CaCommand {
    /// Make an authority: a certificate that the others trust, and the key that signs theirs
    Init(InitOptions),
    /// Make a key and a certificate for a name
    Issue(IssueOptions),
    /// Make a certificate anew with the key, the name, the role and the addresses that it has
    Renew(RenewOptions),
}

#[derive(Args, Debug)]
pub(crate) struct InitOptions {
    /// Directory of the authority; made if it is not there
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Days that its certificate is valid; none that it issues is valid for longer
    #[arg(long, value_name = "N", value_parser = days(), default_value_t = AUTHORITY_DAYS)]
    days: u32,
}

#[derive(Args, Debug)]
pub(crate) struct IssueOptions {
    /// Directory of the authority
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Name of its owner: letters, digits, '-', '_', '.'. Files DIR/NAME.pem and DIR/NAME.key
    #[arg(long, value_name = "NAME")]
    name: String,
    /// node, controller, operator or client. The latter two open no door of their own
    #[arg(long, value_name = "ROLE")]
    role: Role,
    /// A host's name or IP address at which others reach it; more than once for several [default:
    /// localhost, 127.0.0.1 and ::1 for nodes and controllers, none for clients]
    #[arg(long, value_name = "ADDRESS")]
    address: Vec<String>,
    /// Days that the certificate is valid
    #[arg(long, value_name = "N", value_parser = days(), default_value_t = DAYS)]
    days: u32,
}

#[derive(Args, Debug)]
pub(crate) struct RenewOptions {
    /// Directory of the authority
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Name of the owner of the certificate that is made anew
    #[arg(long, value_name = "NAME", required_unless_present = "authority")]
    name: Option<String>,
    /// The authority's own certificate is: what it issued stays valid
    #[arg(long, conflicts_with = "name")]
    authority: bool,
    /// Days that the certificate is valid [default: 365, of the authority 3650]
    #[arg(long, value_name = "N", value_parser = days())]
    days: Option<u32>,
}

fn days() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(DAYS_MAX))
}

pub(crate) fn run(command: &CaCommand) -> Result<u8> {
    let made = match command {
        CaCommand::Init(options) => Authority::init(&options.directory, options.days)?,
        CaCommand::Issue(options) => {
            let identity = Identity::new(options.role, &options.name)?;
            let authority = Authority::open(&options.directory)?;
            authority.issue(&identity, &options.address, options.days)?
        }
        CaCommand::Renew(options) => {
            let authority = Authority::open(&options.directory)?;
            match &options.name {
                Some(name) => authority.renew(name, options.days.unwrap_or(DAYS))?,
                None => authority.renew_authority(options.days.unwrap_or(AUTHORITY_DAYS))?,
            }
        }
    };
    tell(&made)?;
    Ok(0)
}

fn tell(made: &Made) -> Result<()> {
    let days = made.days_left()?;
    put(&format!(
        "certificate {} (valid for {days} days)\nkey         {}\n",
        made.certificate.display(),
        made.key.display()
    ));
    Ok(())
}

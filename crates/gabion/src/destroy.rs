//! `gabion destroy`.

use crate::cluster::{self, Lock};
use crate::options::DestroyOptions;
use crate::screen::put;
use crate::units::{count, size};
use gabion_base::Result;
use std::io;

pub(crate) fn run(options: &DestroyOptions) -> Result<u8> {
    let data = cluster::data_dir(&options.data)?;
    // A version that this build does not know is no reason to keep the disk full.
    let settings = cluster::load(&data);
    if matches!(settings, Ok(None)) {
        cluster::load_existing(&data)?;
    }
    let _lock = Lock::take(&data)?;
    let what = match settings {
        Ok(Some(settings)) => {
            format!(
                "{}, {} of disk",
                count(u64::from(settings.replicas), "replica"),
                size(settings.reserved())
            )
        }
        _ => "data of another version".to_owned(),
    };
    if !options.yes {
        put(&format!("Remove all data in {} ({what})? Type yes: ", data.display()));
        let mut answer = String::new();
        let _ = io::stdin().read_line(&mut answer);
        if answer.trim() != "yes" {
            put("nothing was removed\n");
            return Ok(2);
        }
    }
    cluster::remove(&data)?;
    put(&format!("removed {}: {what}\n", data.display()));
    Ok(0)
}

//! The CRC-64 of Redis: Jones' polynomial, reflected, from 0 and without a last inversion.

/// The polynomial, its lowest bit first.
const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;

/// For a byte, and how many follow it in its word: what it adds to the checksum.
static TABLES: [[u64; 256]; 8] = build_tables();

const fn build_tables() -> [[u64; 256]; 8] {
    let mut tables = [[0_u64; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut after = 1;
    while after < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[after - 1][byte];
            tables[after][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        after += 1;
    }
    tables
}

/// The checksum of what has the checksum `crc`, of nothing 0, with `data` behind it.
pub(crate) fn crc64(mut crc: u64, data: &[u8]) -> u64 {
    let (words, rest) = data.as_chunks::<8>();
    for word in words {
        let mixed = (crc ^ u64::from_le_bytes(*word)).to_le_bytes();
        let parts = mixed.iter().zip(TABLES.iter().rev());
        crc = parts.fold(0, |crc, (byte, table)| crc ^ table[usize::from(*byte)]);
    }
    rest.iter().fold(crc, |crc, byte| crc >> 8 ^ TABLES[0][usize::from(crc as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_redis() {
        assert_eq!(crc64(0, b""), 0);
        // The catalogue's check value of CRC-64/REDIS.
        assert_eq!(crc64(0, b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    #[test]
    fn words_and_bytes_give_the_same() {
        let data: Vec<u8> = (0..100_u8).map(|i| i.wrapping_mul(37)).collect();
        for len in 0..data.len() {
            let by_bytes = data[..len]
                .iter()
                .fold(0_u64, |crc, byte| crc >> 8 ^ TABLES[0][usize::from(crc as u8 ^ byte)]);
            assert_eq!(crc64(0, &data[..len]), by_bytes, "{len} bytes");
            let (before, after) = data[..len].split_at(len / 3);
            assert_eq!(crc64(crc64(0, before), after), by_bytes, "{len} bytes in two parts");
        }
    }
}

-- files, bytes and seconds of a job are those of all its attempts together: they were the last one's
UPDATE jobs SET (files, bytes, seconds) =
    (SELECT sum(files), sum(bytes), sum(seconds) FROM attempts WHERE job = jobs.id)
    WHERE id IN (SELECT job FROM attempts);
-- the id of a copy between two other hosts that may go on without a process of the job
ALTER TABLE jobs ADD COLUMN copy TEXT;
CREATE INDEX jobs_by_copy ON jobs (state) WHERE copy IS NOT NULL;

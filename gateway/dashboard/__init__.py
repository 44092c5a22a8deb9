"""The dashboard: the files of its page, and the cookie by which it is signed in. What it shows is the admin API's."""

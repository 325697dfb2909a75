"""How engines that people run reach our stores. One folder for each; they hold no policy of their own."""
